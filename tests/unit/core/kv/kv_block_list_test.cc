// Lists of blocks between KV caches against whole tensors (kv_oracle.h): walked slice by slice,
// they take from the caches of one instance into those of another every byte of the right place and
// no other one.
#include "src/core/kv/kv_block_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/kv_oracle.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/kv/kv_mover.h"

namespace kvxfer::testing {
namespace {

Form RandomForm(const KvModel& model, std::mt19937_64& random) {
  if (model.v_size == 0) return Form::kFused;
  std::vector<Form> forms = {Form::kPacked, Form::kApart};
  if (model.v_size == model.k_size) forms.push_back(Form::kTwo);
  return forms[random() % forms.size()];
}

KvInstance RandomInstance(const KvModel& model, std::mt19937_64& random) {
  KvInstance side;
  side.tp = 1u << random() % 4;
  side.pp = model.layers % 2 == 0 ? 1 + static_cast<uint32_t>(random() % 2) : 1;
  side.form = RandomForm(model, random);
  side.order = "BN";
  if (model.heads > 1 || random() % 2 == 0) side.order += 'H';
  if (side.form == Form::kTwo) side.order += '2';
  if (random() % 2 == 0) side.order += 'L';
  std::ranges::shuffle(side.order, random);
  side.block_tokens = 1 + static_cast<uint32_t>(random() % 8);
  return side;
}

KvMove RandomMove(std::mt19937_64& random) {
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  KvMove move;
  move.model.layers = 1 + pick(4);
  move.model.heads = 1u << pick(4);
  move.model.k_size = 1 + pick(4);
  move.model.v_size = pick(4) == 0 ? 0 : pick(2) == 0 ? move.model.k_size : 1 + pick(4);
  constexpr KvElement kElements[] = {KvElement::kFp8E4M3, KvElement::kBf16, KvElement::kFp32};
  move.model.element = kElements[pick(3)];
  move.src = RandomInstance(move.model, random);
  move.dst = RandomInstance(move.model, random);
  move.tokens = 1 + pick(20);
  move.src_first = pick(12);
  move.dst_first = pick(12);
  return move;
}

TEST(KvBlockList, RandomPairsOfLayouts) {
  std::mt19937_64 random(TestSeed());
  const int count = Scaled(20'000);
  for (int i = 0; i < count; ++i) {
    const KvMove move = RandomMove(random);
    ASSERT_TRUE(MoveAll(move, i % 2 == 0, random())) << Text(move);
  }
}

TEST(KvBlockList, EveryTensorParallelismBlockSizeAndOrder) {
  constexpr std::array kPowers = {1u, 2u, 4u, 8u};
  constexpr std::array kBlocks = {16u, 32u, 64u};
  uint64_t seed = TestSeed();
  uint64_t turn = 0;
  for (const uint32_t heads : kPowers) {
    for (const Form form : {Form::kPacked, Form::kApart, Form::kFused}) {
      if (form == Form::kFused && heads > 1) continue;
      for (size_t tp = 0; tp < 16; ++tp) {
        for (size_t block = 0; block < 9; ++block) {
          // Under a sanitizer every seventh.
          if (kSlow && ++turn % 7 != 0) continue;
          for (int order = 0; order < 4; ++order) {
            const auto side = [&](uint32_t tensors, uint32_t tokens, bool hnd) {
              return KvInstance{.tp = tensors,
                                .form = form,
                                .order = hnd ? "BHN" : "BNH",
                                .block_tokens = tokens};
            };
            KvMove move{.model = {.layers = 1,
                                  .heads = heads,
                                  .k_size = 2,
                                  .v_size = form == Form::kFused ? 0u : 1u,
                                  .element = KvElement::kBytes},
                        .src = side(kPowers[tp / 4], kBlocks[block / 3], order / 2 == 1),
                        .dst = side(kPowers[tp % 4], kBlocks[block % 3], order % 2 == 1),
                        .tokens = 80};
            ASSERT_TRUE(MoveAll(move, false, ++seed)) << Text(move);
          }
        }
      }
    }
  }
}

// --- bad input ---

// Two layers of 4 heads on one rank, 8 blocks of 4 tokens, one tensor a layer.
class KvBlockListBad : public ::testing::Test {
 protected:
  KvBlockListBad() {
    for (Cache* cache : {&src_, &dst_}) {
      *cache = MakeCache(kModel, {.layers = 2}, 0, 4, Form::kPacked, "BHN", 8, 4, nullptr, 0);
    }
  }

  absl::Status List() {
    const CacheSide from(src_, src_ids_, src_first_);
    const CacheSide to(dst_, dst_ids_, dst_first_);
    KvSide local = from.side();
    if (tensors_ < local.tensors.size()) local.tensors = local.tensors.first(tensors_);
    const RegionTable local_table = from.Table(Access::kNone);
    const RegionTable remote_table = to.Table(right_);
    IdPool pool;
    const absl::Status listed =
        ListKvBlocks(local, to.side(), range_, tokens_, direction_, local_table, remote_table, pool)
            .status();
    // Preparing says the same.
    EXPECT_EQ(
        KvLayerLists::Make(local, to.side(), range_, tokens_, direction_, local_table, remote_table)
            .status(),
        listed);
    return listed;
  }

  static constexpr KvModel kModel{.layers = 2, .heads = 4, .k_size = 2, .v_size = 2};
  Cache src_;
  Cache dst_;
  std::vector<uint32_t> src_ids_ = {3, 1, 2};
  std::vector<uint32_t> dst_ids_ = {7, 0, 5};
  uint64_t src_first_ = 0;
  uint64_t dst_first_ = 0;
  size_t tensors_ = 2;
  Access right_ = Access::kRemoteWrite;
  Direction direction_ = Direction::kWrite;
  KvRange range_{.heads = {0, 4}, .layers = 2};
  uint64_t tokens_ = 12;
};

TEST_F(KvBlockListBad, NothingIsWrongWithThis) { EXPECT_OK(List()); }

TEST_F(KvBlockListBad, EachFieldIsNamed) {
  const auto refused = [&](std::initializer_list<const char*> texts) {
    return Fails(List(), absl::StatusCode::kInvalidArgument, texts);
  };
  tokens_ = 13;
  EXPECT_TRUE(refused({"local KV cache", "13 tokens from 0", "3 blocks of 4"}));
  tokens_ = UINT64_MAX;
  EXPECT_TRUE(refused({"local KV cache", "3 blocks of 4"}));
  tokens_ = 0;
  EXPECT_TRUE(refused({"no tokens"}));
  tokens_ = 12;
  src_first_ = 13;
  EXPECT_TRUE(refused({"local KV cache", "12 tokens from 13"}));
  src_first_ = 0;
  range_.first_layer = 1;
  EXPECT_TRUE(refused({"local KV cache", "2 layers from 1 on", "has 2 from 0 on"}));
  range_ = {.heads = {0, 4}, .layers = 0};
  EXPECT_TRUE(refused({"0 layers from 0 on"}));
  range_.layers = 2;
  range_.heads = {3, 2};
  EXPECT_TRUE(refused({"local KV cache", "2 heads from 3 on", "4 from 0 on"}));
  range_.heads = {UINT32_MAX, 2};
  EXPECT_TRUE(refused({"2 heads from 4294967295 on"}));
  range_.heads = {0, 4};
  src_ids_[1] = 8;
  EXPECT_TRUE(refused({"local KV cache", "ids[1] is 8", "blocks 0 to 7"}));
  src_ids_[1] = 3;
  EXPECT_OK(List()) << "a source may be read twice";
  dst_ids_[2] = 7;
  EXPECT_TRUE(refused({"remote_ids[0] and remote_ids[2]", "7"}));
  dst_ids_ = {1, 7, 0, 7};
  dst_first_ = 4;
  EXPECT_TRUE(refused({"remote_ids[1] and remote_ids[3]", "7"}));
  dst_first_ = 0;
  dst_ids_ = {7, 0};
  EXPECT_TRUE(refused({"remote KV cache", "12 tokens", "2 blocks of 4"}));
  dst_ids_ = {7, 0, 5};
  tensors_ = 1;
  EXPECT_TRUE(refused({"local KV cache", "1 tensors", "has 2"}));
  tensors_ = 2;
  right_ = Access::kRemoteRead;
  EXPECT_TRUE(Fails(List(), absl::StatusCode::kPermissionDenied, {"remote KV cache, tensor 0"}));
}

TEST_F(KvBlockListBad, AReadLooksAtTheOtherSide) {
  direction_ = Direction::kRead;
  EXPECT_TRUE(Fails(List(), absl::StatusCode::kPermissionDenied, {"remote KV cache, tensor 0"}));
  right_ = Access::kRemoteRead;
  EXPECT_OK(List());
  dst_ids_[2] = 7;
  EXPECT_OK(List()) << "the remote side is the source now";
  src_ids_[2] = 1;
  EXPECT_TRUE(Fails(List(), absl::StatusCode::kInvalidArgument, {"local_ids[1] and local_ids[2]"}));
}

TEST_F(KvBlockListBad, OfAnotherModelEachValueIsOnItsSide) {
  dst_.model.fingerprint = 5;
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    direction_ = direction;
    EXPECT_TRUE(Fails(List(), absl::StatusCode::kInvalidArgument,
                      {"fingerprint", "0x0 here", "0x5 there"}));
  }
}

TEST(KvBlockListMeetings, TooManyAreRefusedAtOnce) {
  const KvModel model{.layers = 1, .heads = 1, .k_size = 1, .v_size = 0};
  const auto made = [&](uint32_t tokens, uint64_t blocks) {
    return *KvLayout::FromParts(model, {.layers = 1}, blocks, tokens,
                                {{{.block_stride = 2u * tokens, .token_stride = 2, .bytes = 2}}});
  };
  const auto list = [&](uint32_t src_tokens, uint32_t dst_tokens, uint64_t tokens) {
    const KvLayout src = made(src_tokens, tokens);
    const KvLayout dst = made(dst_tokens, tokens);
    const std::vector<uint64_t> here = {uint64_t{1} << 40};
    const std::vector<uint64_t> there = {uint64_t{1} << 50};
    std::vector<uint32_t> ids(tokens);
    std::iota(ids.begin(), ids.end(), 0);
    const RegionTable local({{RegionId{1}, here[0], uint64_t{1} << 49, Access::kNone}}, "here");
    const RegionTable remote({{RegionId{1}, there[0], uint64_t{1} << 55, Access::kReadWrite}}, "b");
    IdPool pool;
    return ListKvBlocks({.layout = &src, .tensors = here, .ids = ids},
                        {.layout = &dst, .tensors = there, .ids = ids},
                        {.heads = {0, 1}, .layers = 1}, tokens, Direction::kWrite, local, remote,
                        pool);
  };
  ASSERT_OK_AND_ASSIGN(const BlockList most, list(1, 4096, 20'000));
  EXPECT_EQ(most.pairs().size(), 4096u);
  EXPECT_TRUE(Fails(list(1, 1 << 20, 200'000), absl::StatusCode::kInvalidArgument,
                    {"blocks of 1 and of 1048576 tokens", "4096 ways"}));
}

TEST_F(KvBlockListBad, ABlockThatTheTokensDoNotReachMayComeTwice) {
  tokens_ = 8;
  dst_ids_ = {7, 0, 7};
  EXPECT_OK(List());
}

// --- size ---

TEST(KvBlockListSize, IdsAndMeetingsAreAllThatGrows) {
  // 16 tokens a block to 128, from a token inside a block on: two ways at the ends, eight between.
  const KvModel model{.layers = 4, .heads = 2, .k_size = 2, .v_size = 2};
  Cache src = MakeCache(model, {.layers = 4}, 0, 2, Form::kPacked, "BHN", 64, 16, nullptr, 0);
  Cache dst = MakeCache(model, {.layers = 4}, 0, 2, Form::kPacked, "BHN", 8, 128, nullptr, 0);
  std::vector<uint32_t> src_ids(64);
  std::iota(src_ids.begin(), src_ids.end(), 0);
  const std::vector<uint32_t> dst_ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const CacheSide from(src, src_ids, 3);
  const CacheSide to(dst, dst_ids, 3);
  const RegionTable local_table = from.Table(Access::kNone);
  const RegionTable remote_table = to.Table(Access::kRemoteWrite);
  IdPool pool;
  ASSERT_OK_AND_ASSIGN(const BlockList list,
                       ListKvBlocks(from.side(), to.side(), {.heads = {0, 2}, .layers = 4}, 1000,
                                    Direction::kWrite, local_table, remote_table, pool));
  EXPECT_EQ(list.pairs().size(), 4u * 10);
  EXPECT_EQ(list.block_pieces().size(), 10u);
  EXPECT_EQ(list.local_ids().size(), 63u);
  EXPECT_EQ(list.total_bytes(), 4u * 1000 * 2 * 4 * 2);
}

// --- prepared ---

// The bytes of prepared lists are held against whole tensors by kv_mover.h.
TEST(KvLayerLists, TheListsOfAllLayersShareTheIds) {
  const KvModel model{.layers = 4, .heads = 2, .k_size = 2, .v_size = 2};
  Cache src = MakeCache(model, {.layers = 4}, 0, 2, Form::kApart, "BHN", 8, 16, nullptr, 0);
  Cache dst = MakeCache(model, {.layers = 4}, 0, 2, Form::kApart, "BHN", 8, 16, nullptr, 0);
  const std::vector<uint32_t> dst_ids = {4, 2, 0};
  std::vector<uint32_t> src_ids = {7, 1, 2};
  const CacheSide from(src, src_ids, 0);
  const CacheSide to(dst, dst_ids, 0);
  std::optional<KvLayerLists> lists;
  {
    const RegionTable local_table = from.Table(Access::kNone);
    const RegionTable remote_table = to.Table(Access::kRemoteWrite);
    ASSERT_OK_AND_ASSIGN(
        lists,
        KvLayerLists::Make(from.side(), to.side(), {.heads = {0, 2}, .first_layer = 1, .layers = 3},
                           48, Direction::kWrite, local_table, remote_table));
  }
  src_ids.assign(3, 99);  // read by Make alone
  ASSERT_OK_AND_ASSIGN(BlockList one, lists->List(1, 1));
  ASSERT_OK_AND_ASSIGN(const BlockList two, lists->List(2, 2));
  lists.reset();
  EXPECT_EQ(one.local_ids().data(), two.local_ids().data());
  EXPECT_EQ(one.remote_regions().size(), 2u);  // K and V of its layer
  EXPECT_EQ(two.remote_regions().size(), 4u);
  IdPool pool;
  one.ReleaseIds(pool);
  EXPECT_TRUE(one.local_ids().empty());
  EXPECT_THAT(two.local_ids(), ::testing::ElementsAre(7, 1, 2));
  EXPECT_THAT(two.remote_ids(), ::testing::ElementsAre(4, 2, 0));
}

// Expect runs that meet at the remote side to come one after the other, whichever of the two orders
// it has and whether it is written or read: a NIC makes one request of them.
TEST(KvBlockListOrder, RunsMeetAtTheRemoteSide) {
  const KvModel model{.layers = 1, .heads = 4, .k_size = 2, .v_size = 2};
  const std::vector<uint32_t> ids = {0, 1};
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    for (const bool tokens_within_heads : {true, false}) {
      const char* const here = tokens_within_heads ? "BNH" : "BHN";
      const char* const there = tokens_within_heads ? "BHN" : "BNH";
      Cache local = MakeCache(model, {.layers = 1}, 0, 4, Form::kApart, here, 2, 8, nullptr, 0);
      Cache remote = MakeCache(model, {.layers = 1}, 0, 4, Form::kApart, there, 2, 8, nullptr, 0);
      const CacheSide from(local, ids, 0);
      const CacheSide to(remote, ids, 0);
      const RegionTable local_table = from.Table(Access::kNone);
      const RegionTable remote_table =
          to.Table(direction == Direction::kWrite ? Access::kRemoteWrite : Access::kRemoteRead);
      IdPool pool;
      ASSERT_OK_AND_ASSIGN(const BlockList list,
                           ListKvBlocks(from.side(), to.side(), {.heads = {0, 4}, .layers = 1}, 16,
                                        direction, local_table, remote_table, pool));
      ASSERT_FALSE(list.block_pieces().empty());
      for (const BlockPieces& runs : list.block_pieces()) {
        EXPECT_EQ(runs.used_dims().back().remote_stride, runs.bytes);
        EXPECT_NE(runs.used_dims().back().local_stride, runs.bytes);
      }
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
