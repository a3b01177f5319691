// Lists of blocks between KV caches against whole tensors (kv_oracle.h): walked slice by slice,
// they take from the caches of one instance into those of another every byte of the right place and
// no other one.
#include "src/core/kv_block_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/core/plan.h"
#include "src/core/reshard.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/kv_oracle.h"

namespace kvxfer::testing {
namespace {

constexpr uint8_t kUntouched = 0xa5;

// How one instance holds its cache.
struct Instance {
  uint32_t tp = 1;
  uint32_t pp = 1;  // stages of equal length
  Form form = Form::kPacked;
  std::string order = "BHN";
  uint32_t block_tokens = 16;
};

// One request: where its tokens begin on either side, and how many there are.
struct Case {
  KvModel model;
  Instance src;
  Instance dst;
  uint64_t src_first = 0;
  uint64_t dst_first = 0;
  uint32_t tokens = 0;
};

std::vector<uint32_t> Shuffled(uint32_t count, std::mt19937_64& random) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, random);
  return ids;
}

// A cache as one side of a transfer; each tensor is a region of its own.
class Side {
 public:
  Side(Cache& cache, const std::vector<uint32_t>& ids, uint64_t first_token)
      : layout_(KvLayout::FromTensors(cache.model, cache.shard, cache.tensors)) {
    EXPECT_OK(layout_);
    // As a peer gets it.
    const auto again = KvLayout::FromParts(layout_->model(), layout_->shard(), layout_->blocks(),
                                           layout_->block_tokens(), layout_->parts());
    EXPECT_OK(again);
    EXPECT_TRUE(again.ok() && *again == *layout_);
    for (auto& of_layer : cache.memory) {
      for (auto& tensor : of_layer) {
        tensors_.push_back(reinterpret_cast<uint64_t>(tensor.data()));
        sizes_.push_back(tensor.size());
      }
    }
    side_ = {.layout = &*layout_, .tensors = tensors_, .ids = ids, .first_token = first_token};
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  const KvSide& side() const { return side_; }
  RegionTable Table(Access access) const {
    std::vector<RegionView> views;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      views.push_back({.id = RegionId{static_cast<uint32_t>(i + 1)},
                       .base = tensors_[i],
                       .bytes = sizes_[i],
                       .access = access});
    }
    return RegionTable(std::move(views), "a cache");
  }

 private:
  absl::StatusOr<KvLayout> layout_;
  std::vector<uint64_t> tensors_;
  std::vector<uint64_t> sizes_;
  KvSide side_;
};

// What a backend would call the regions: places in arrays, so that they can be told again.
class Holds {
 public:
  Holds(const RegionTable& local, const RegionTable& remote) : local_(local), remote_(remote) {
    for (size_t i = 0; i < local_.regions().size(); ++i) here_.push_back(&registrations_[i]);
    for (size_t i = 0; i < remote_.regions().size(); ++i) there_.push_back(&keys_[i]);
  }
  RegionHolds regions() const { return {.local = here_, .remote = there_}; }
  const RegionView& LocalOf(const Run& run) const {
    return local_.regions()[static_cast<size_t>(run.registration - registrations_.data())];
  }
  const RegionView& RemoteOf(const Run& run) const {
    return remote_.regions()[static_cast<size_t>(run.key - keys_.data())];
  }

 private:
  const RegionTable& local_;
  const RegionTable& remote_;
  std::array<Registration, 16> registrations_;
  std::array<RemoteKey, 16> keys_;
  std::vector<const Registration*> here_;
  std::vector<const RemoteKey*> there_;
};

class Mover {
 public:
  Mover(const Case& c, bool padded, uint64_t seed)
      : case_(c), random_(seed), padding_(padded ? &random_ : nullptr) {
    src_ids_ = Shuffled(Blocks(c.src, c.src_first), random_);
    dst_ids_ = Shuffled(Blocks(c.dst, c.dst_first), random_);
  }

  // Every rank of the target takes its part; false after the first that is not as it should be.
  bool MoveAll() {
    for (uint32_t rank = 0; rank < case_.src.tp; ++rank) {
      for (uint32_t stage = 0; stage < case_.src.pp; ++stage) MakeSource(rank, stage);
    }
    for (uint32_t rank = 0; rank < case_.dst.tp; ++rank) {
      for (uint32_t stage = 0; stage < case_.dst.pp; ++stage) {
        if (!MoveTo(rank, stage)) return false;
      }
    }
    return true;
  }

 private:
  uint32_t Blocks(const Instance& side, uint64_t first) const {
    return static_cast<uint32_t>((first + case_.tokens + side.block_tokens - 1) /
                                 side.block_tokens) +
           1;
  }

  KvShard ShardOf(const Instance& side, uint32_t rank, uint32_t stage) const {
    const uint32_t each = case_.model.layers / side.pp;
    return {.tp_rank = rank, .tp_size = side.tp, .first_layer = stage * each, .layers = each};
  }

  Cache Make(const Instance& side, const KvShard& shard, size_t blocks, uint8_t fill) {
    const auto [first, count] = HeadRange(case_.model.heads, side.tp, shard.tp_rank);
    return MakeCache(case_.model, shard, first, count, side.form, side.order,
                     static_cast<uint32_t>(blocks), side.block_tokens, padding_, fill);
  }

  // Calls visit(layer, kv, token of the request, head, element) for all that `cache` has of it.
  template <typename Visit>
  void ForAll(const Cache& cache, Visit visit) const {
    for (uint32_t layer = 0; layer < cache.shard.layers; ++layer) {
      for (int kv = 0; kv < (case_.model.v_size > 0 ? 2 : 1); ++kv) {
        for (uint32_t token = 0; token < case_.tokens; ++token) {
          for (uint32_t head = 0; head < cache.heads; ++head) {
            const uint32_t size = kv == 1 ? case_.model.v_size : case_.model.k_size;
            for (uint32_t e = 0; e < size; ++e) {
              visit(cache.shard.first_layer + layer, kv, token, cache.first_head + head, e);
            }
          }
        }
      }
    }
  }

  void Fill(Cache& cache, const Instance& side, uint64_t first, const std::vector<uint32_t>& ids) {
    ForAll(cache, [&](uint32_t layer, int kv, uint32_t token, uint32_t head, uint32_t e) {
      const uint64_t at = first + token;
      uint8_t* const bytes = cache.At(layer, kv, ids[at / side.block_tokens],
                                      static_cast<uint32_t>(at % side.block_tokens), head, e);
      for (uint32_t b = 0; b < BytesOf(case_.model.element); ++b) {
        bytes[b] = ValueOf(layer, kv, token, head, e, b);
        ++filled_;
      }
    });
  }

  void MakeSource(uint32_t rank, uint32_t stage) {
    sources_.push_back(Make(case_.src, ShardOf(case_.src, rank, stage), src_ids_.size(), 0));
    Fill(sources_.back(), case_.src, case_.src_first, src_ids_);
  }

  bool MoveTo(uint32_t rank, uint32_t stage) {
    Cache dst = Make(case_.dst, ShardOf(case_.dst, rank, stage), dst_ids_.size(), kUntouched);
    Cache want = dst;
    filled_ = 0;
    Fill(want, case_.dst, case_.dst_first, dst_ids_);
    moved_ = 0;
    const auto sources = SourcesOf(case_.model, case_.src.tp, rank, case_.dst.tp);
    EXPECT_OK(sources);
    if (!sources.ok()) return false;
    for (const KvSource& source : *sources) {
      for (Cache& src : sources_) {
        if (src.shard.tp_rank == source.tp_rank && !MoveFrom(src, dst, source.heads)) return false;
      }
    }
    // As many bytes as there are to be, and all of them right: none was written twice.
    EXPECT_EQ(moved_, filled_);
    EXPECT_TRUE(dst.memory == want.memory);
    return moved_ == filled_ && dst.memory == want.memory;
  }

  bool MoveFrom(Cache& src, Cache& dst, KvHeads heads) {
    const uint32_t first = std::max(src.shard.first_layer, dst.shard.first_layer);
    const uint32_t end = std::min(src.shard.first_layer + src.shard.layers,
                                  dst.shard.first_layer + dst.shard.layers);
    if (first >= end) return true;
    Side from(src, src_ids_, case_.src_first);
    Side to(dst, dst_ids_, case_.dst_first);
    const bool writes = random_() % 2 == 0;
    Side& local = writes ? from : to;
    Side& remote = writes ? to : from;
    const RegionTable local_table = local.Table(Access::kNone);
    const RegionTable remote_table =
        remote.Table(writes ? Access::kRemoteWrite : Access::kRemoteRead);
    IdPool pool;
    EXPECT_OK(CheckKvTensors("local", *local.side().layout, local.side().tensors));
    EXPECT_OK(CheckKvTensors("remote", *remote.side().layout, remote.side().tensors));
    // In as many transfers as may be.
    for (uint32_t layer = first; layer < end;) {
      const auto layers = static_cast<uint32_t>(1 + random_() % (end - layer));
      const auto list = ListKvBlocks(
          local.side(), remote.side(),
          {.first_layer = layer, .layers = layers, .heads = heads, .tokens = case_.tokens},
          writes ? Direction::kWrite : Direction::kRead, local_table, remote_table, pool);
      EXPECT_OK(list);
      if (!list.ok()) return false;
      CopySlices(*list, local_table, remote_table, writes);
      layer += layers;
    }
    return !::testing::Test::HasFailure();
  }

  // Slices of random size; every run lies in the regions that it names.
  void CopySlices(const BlockList& list, const RegionTable& local, const RegionTable& remote,
                  bool writes) {
    const SliceLimits limits{.max_bytes = 1 + random_() % 300, .max_runs = 1 + random_() % 20};
    const Holds holds(local, remote);
    std::vector<Run> room;
    uint64_t total = 0;
    for (SliceCursor cursor(&list); !cursor.done();) {
      const SliceRuns slice = cursor.Next(limits, holds.regions(), room);
      ASSERT_LE(slice.runs.size(), limits.max_runs);
      ASSERT_LE(slice.bytes, limits.max_bytes);
      uint64_t bytes = 0;
      Run before{};
      for (const Run& run : slice.runs) {
        const bool continues = before.local + before.bytes == run.local &&
                               before.remote + before.bytes == run.remote &&
                               before.registration == run.registration && before.key == run.key;
        ASSERT_FALSE(continues) << "two runs that are one";
        before = run;
        ASSERT_TRUE(holds.LocalOf(run).Contains(run.local, run.bytes));
        ASSERT_TRUE(holds.RemoteOf(run).Contains(run.remote, run.bytes));
        auto* const here = reinterpret_cast<uint8_t*>(run.local);
        auto* const there = reinterpret_cast<uint8_t*>(run.remote);
        std::copy_n(writes ? here : there, run.bytes, writes ? there : here);
        bytes += run.bytes;
      }
      ASSERT_EQ(bytes, slice.bytes);
      ASSERT_GT(bytes, 0u);
      total += bytes;
    }
    ASSERT_EQ(total, list.total_bytes());
    moved_ += total;
  }

  const Case case_;
  std::mt19937_64 random_;
  std::mt19937_64* const padding_;
  std::vector<uint32_t> src_ids_;
  std::vector<uint32_t> dst_ids_;
  std::vector<Cache> sources_;
  uint64_t filled_ = 0;  // bytes
  uint64_t moved_ = 0;
};

std::string Text(const Case& c) {
  const auto side = [](const Instance& i) {
    return "tp " + std::to_string(i.tp) + " pp " + std::to_string(i.pp) + " form " +
           std::to_string(static_cast<int>(i.form)) + " \"" + i.order + "\" blocks of " +
           std::to_string(i.block_tokens);
  };
  return std::to_string(c.model.layers) + " layers, " + std::to_string(c.model.heads) + " heads, " +
         std::to_string(c.model.k_size) + "+" + std::to_string(c.model.v_size) + "; " +
         side(c.src) + " -> " + side(c.dst) + "; tokens " + std::to_string(c.tokens) + " from " +
         std::to_string(c.src_first) + " to " + std::to_string(c.dst_first);
}

Form RandomForm(const KvModel& model, std::mt19937_64& random) {
  if (model.v_size == 0) return Form::kFused;
  std::vector<Form> forms = {Form::kPacked, Form::kApart};
  if (model.v_size == model.k_size) forms.push_back(Form::kTwo);
  return forms[random() % forms.size()];
}

Instance RandomInstance(const KvModel& model, std::mt19937_64& random) {
  Instance side;
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

Case RandomCase(std::mt19937_64& random) {
  const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Case c;
  c.model.layers = 1 + pick(4);
  c.model.heads = 1u << pick(4);
  c.model.k_size = 1 + pick(4);
  c.model.v_size = pick(4) == 0 ? 0 : pick(2) == 0 ? c.model.k_size : 1 + pick(4);
  constexpr KvElement kElements[] = {KvElement::kFp8E4M3, KvElement::kBf16, KvElement::kFp32};
  c.model.element = kElements[pick(3)];
  c.src = RandomInstance(c.model, random);
  c.dst = RandomInstance(c.model, random);
  c.tokens = 1 + pick(20);
  c.src_first = pick(12);
  c.dst_first = pick(12);
  return c;
}

TEST(KvBlockList, RandomPairsOfLayouts) {
  std::mt19937_64 random(TestSeed());
  const int count = Scaled(20'000);
  for (int i = 0; i < count; ++i) {
    const Case c = RandomCase(random);
    ASSERT_TRUE(Mover(c, i % 2 == 0, random()).MoveAll()) << Text(c);
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
              return Instance{.tp = tensors,
                              .form = form,
                              .order = hnd ? "BHN" : "BNH",
                              .block_tokens = tokens};
            };
            Case c{.model = {.layers = 1,
                             .heads = heads,
                             .k_size = 2,
                             .v_size = form == Form::kFused ? 0u : 1u,
                             .element = KvElement::kBytes},
                   .src = side(kPowers[tp / 4], kBlocks[block / 3], order / 2 == 1),
                   .dst = side(kPowers[tp % 4], kBlocks[block % 3], order % 2 == 1),
                   .tokens = 80};
            ASSERT_TRUE(Mover(c, false, ++seed).MoveAll()) << Text(c);
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
    const Side from(src_, src_ids_, src_first_);
    const Side to(dst_, dst_ids_, dst_first_);
    KvSide local = from.side();
    if (tensors_ < local.tensors.size()) local.tensors = local.tensors.first(tensors_);
    const RegionTable local_table = from.Table(Access::kNone);
    const RegionTable remote_table = to.Table(right_);
    IdPool pool;
    return ListKvBlocks(local, to.side(), wanted_, direction_, local_table, remote_table, pool)
        .status();
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
  KvWanted wanted_{.first_layer = 0, .layers = 2, .heads = {0, 4}, .tokens = 12};
};

TEST_F(KvBlockListBad, NothingIsWrongWithThis) { EXPECT_OK(List()); }

TEST_F(KvBlockListBad, EachFieldIsNamed) {
  const auto refused = [&](std::initializer_list<const char*> texts) {
    return Fails(List(), absl::StatusCode::kInvalidArgument, texts);
  };
  wanted_.tokens = 13;
  EXPECT_TRUE(refused({"local KV cache", "13 tokens from 0", "3 blocks of 4"}));
  wanted_.tokens = UINT64_MAX;
  EXPECT_TRUE(refused({"local KV cache", "3 blocks of 4"}));
  wanted_.tokens = 0;
  EXPECT_TRUE(refused({"no tokens"}));
  wanted_.tokens = 12;
  src_first_ = 13;
  EXPECT_TRUE(refused({"local KV cache", "12 tokens from 13"}));
  src_first_ = 0;
  wanted_.first_layer = 1;
  EXPECT_TRUE(refused({"local KV cache", "2 layers from 1 on", "has 2 from 0 on"}));
  wanted_ = {.first_layer = 0, .layers = 0, .heads = {0, 4}, .tokens = 12};
  EXPECT_TRUE(refused({"0 layers from 0 on"}));
  wanted_.layers = 2;
  wanted_.heads = {3, 2};
  EXPECT_TRUE(refused({"local KV cache", "2 heads from 3 on", "4 from 0 on"}));
  wanted_.heads = {UINT32_MAX, 2};
  EXPECT_TRUE(refused({"2 heads from 4294967295 on"}));
  wanted_.heads = {0, 4};
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
                        {.layers = 1, .heads = {0, 1}, .tokens = tokens}, Direction::kWrite, local,
                        remote, pool);
  };
  ASSERT_OK_AND_ASSIGN(const BlockList most, list(1, 4096, 20'000));
  EXPECT_EQ(most.pairs().size(), 4096u);
  EXPECT_TRUE(Fails(list(1, 1 << 20, 200'000), absl::StatusCode::kInvalidArgument,
                    {"blocks of 1 and of 1048576 tokens", "4096 ways"}));
}

TEST_F(KvBlockListBad, ABlockThatTheTokensDoNotReachMayComeTwice) {
  wanted_.tokens = 8;
  dst_ids_ = {7, 0, 7};
  EXPECT_OK(List());
}

// --- tensors of one cache ---

class KvTensors : public ::testing::Test {
 protected:
  // Four layers; blocks of 32 bytes, `stride` apart.
  static KvLayout Layout(uint64_t stride, uint64_t blocks = 10) {
    const KvModel model{
        .layers = 4, .heads = 2, .k_size = 4, .v_size = 4, .element = KvElement::kBytes};
    const KvLayout::Part k{
        .block_stride = stride, .token_stride = 8, .head_stride = 16, .bytes = 4};
    KvLayout::Part v = k;
    v.offset = 4;
    return *KvLayout::FromParts(model, {.layers = 4}, blocks, 2, std::vector{k, v});
  }
  static ::testing::AssertionResult Refused(const KvLayout& layout,
                                            const std::vector<uint64_t>& tensors,
                                            std::initializer_list<const char*> texts) {
    return Fails(CheckKvTensors("decode", layout, tensors), absl::StatusCode::kInvalidArgument,
                 texts);
  }
};

TEST_F(KvTensors, MayFollowEachOther) {
  EXPECT_OK(CheckKvTensors("a", Layout(32), std::vector<uint64_t>{1320, 1000, 1640, 9000}));
  EXPECT_TRUE(
      Refused(Layout(32), {1319, 1000, 1640, 9000}, {"decode KV cache", "0 and 1 overlap"}));
  EXPECT_TRUE(Refused(Layout(32), {1000, 5000, 1000, 9000}, {"0 and 2 overlap"}));
}

TEST_F(KvTensors, MayLieInEachOthersGaps) {
  EXPECT_OK(CheckKvTensors("a", Layout(128), std::vector<uint64_t>{1000, 1032, 1064, 1096}));
  EXPECT_OK(CheckKvTensors("a", Layout(128), std::vector<uint64_t>{1000, 1160, 1064, 1224}));
  EXPECT_TRUE(Refused(Layout(128), {1000, 1031, 1064, 1096}, {"0 and 1 overlap"}));
  EXPECT_TRUE(Refused(Layout(127), {1000, 1032, 1064, 1096}, {"0 and 3 overlap"}));
  EXPECT_TRUE(Refused(Layout(128), {1000, 1032, 1064, 1000 + 128}, {"0 and 3 overlap"}));
}

TEST_F(KvTensors, ApartFromEachOtherMayHaveTheSamePlacesInTheGapsOfAThird) {
  // 10 blocks reach over 1184 bytes.
  EXPECT_OK(CheckKvTensors("a", Layout(128), std::vector<uint64_t>{1000, 1672, 2280, 9000}));
}

TEST_F(KvTensors, OfUnlikeDistancesMayOnlyFollowEachOther) {
  const KvModel model{
      .layers = 2, .heads = 1, .k_size = 8, .v_size = 4, .element = KvElement::kBytes};
  const KvLayout::Part k{.block_stride = 64, .token_stride = 8, .bytes = 8};
  const KvLayout::Part v{.tensor = 1, .block_stride = 32, .token_stride = 4, .bytes = 4};
  ASSERT_OK_AND_ASSIGN(const KvLayout layout,
                       KvLayout::FromParts(model, {.layers = 2}, 4, 2, std::vector{k, v}));
  // K reaches over 208 bytes, V over 104.
  EXPECT_OK(CheckKvTensors("a", layout, std::vector<uint64_t>{1000, 1208, 2000, 2208}));
  EXPECT_TRUE(Refused(layout, {1000, 1207, 2000, 2208}, {"0 and 1 overlap"}));
  EXPECT_TRUE(Refused(layout, {1000, 5000, 2000, 2016}, {"2 and 3 overlap"}));
}

TEST_F(KvTensors, OfOneBlockMayNotTouch) {
  EXPECT_OK(CheckKvTensors("a", Layout(0, 1), std::vector<uint64_t>{1000, 1032, 1064, 1096}));
  EXPECT_TRUE(Refused(Layout(0, 1), {1000, 1031, 1064, 1096}, {"0 and 1 overlap"}));
}

TEST_F(KvTensors, AreAsManyAsTheLayoutHasAndSomewhere) {
  EXPECT_TRUE(Refused(Layout(32), {1000, 2000, 3000}, {"3 tensors", "has 4"}));
  EXPECT_TRUE(Refused(Layout(32), {0, 2000, 3000, 4000}, {"tensor 0 at 0x0"}));
  EXPECT_TRUE(Refused(Layout(32), {1000, 2000, UINT64_MAX - 300, 4000},
                      {"tensor 2", "320 bytes", "address space"}));
}

// --- size ---

// --- size ---

TEST(KvBlockListSize, IdsAndMeetingsAreAllThatGrows) {
  // 16 tokens a block to 128, from a token inside a block on: two ways at the ends, eight between.
  const KvModel model{.layers = 4, .heads = 2, .k_size = 2, .v_size = 2};
  Cache src = MakeCache(model, {.layers = 4}, 0, 2, Form::kPacked, "BHN", 64, 16, nullptr, 0);
  Cache dst = MakeCache(model, {.layers = 4}, 0, 2, Form::kPacked, "BHN", 8, 128, nullptr, 0);
  std::vector<uint32_t> src_ids(64);
  std::iota(src_ids.begin(), src_ids.end(), 0);
  const std::vector<uint32_t> dst_ids = {0, 1, 2, 3, 4, 5, 6, 7};
  const Side from(src, src_ids, 3);
  const Side to(dst, dst_ids, 3);
  const RegionTable local_table = from.Table(Access::kNone);
  const RegionTable remote_table = to.Table(Access::kRemoteWrite);
  IdPool pool;
  ASSERT_OK_AND_ASSIGN(
      const BlockList list,
      ListKvBlocks(from.side(), to.side(), {.layers = 4, .heads = {0, 2}, .tokens = 1000},
                   Direction::kWrite, local_table, remote_table, pool));
  EXPECT_EQ(list.pairs().size(), 4u * 10);
  EXPECT_EQ(list.block_runs().size(), 10u);
  EXPECT_EQ(list.local_ids().size(), 63u);
  EXPECT_EQ(list.total_bytes(), 4u * 1000 * 2 * 4 * 2);
}

}  // namespace
}  // namespace kvxfer::testing
