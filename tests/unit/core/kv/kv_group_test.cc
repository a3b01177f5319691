// Groups of ranks: what each worker has to do with each of them, and which groups are none.
#include "src/core/kv/kv_group.h"

#include <gtest/gtest.h>

#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/support/kv_oracle.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

KvLayout LayoutOf(const KvModel& model, const KvShard& shard) {
  const auto [first, count] = HeadRange(model.heads, shard.tp_size, shard.tp_rank);
  const Cache cache = MakeCache(model, shard, first, count, Form::kPacked, "BHN", 2, 4, nullptr, 0);
  return *KvLayout::FromTensors(cache.model, cache.shard, cache.tensors);
}

// All ranks of an instance, named "rank/stage".
class Instance {
 public:
  Instance(const KvModel& model, uint32_t tp, const std::vector<uint32_t>& stages) {
    uint32_t first = 0;
    for (size_t stage = 0; stage < stages.size(); ++stage) {
      for (uint32_t rank = 0; rank < tp; ++rank) {
        Add(std::to_string(rank) + "/" + std::to_string(stage),
            LayoutOf(model, {rank, tp, first, stages[stage]}));
      }
      first += stages[stage];
    }
  }
  void Add(std::string name, const KvLayout& layout) {
    names_.push_back(std::move(name));
    layouts_.push_back(layout);
  }
  void Remove(size_t i) {
    names_.erase(names_.begin() + static_cast<ptrdiff_t>(i));
    layouts_.erase(layouts_.begin() + static_cast<ptrdiff_t>(i));
  }
  size_t size() const { return layouts_.size(); }
  const KvLayout& layout(size_t i) const { return layouts_[i]; }
  std::vector<KvRank> ranks() const {
    std::vector<KvRank> ranks;
    for (size_t i = 0; i < size(); ++i) ranks.push_back({names_[i], &layouts_[i]});
    return ranks;
  }

 private:
  std::vector<std::string> names_;
  std::vector<KvLayout> layouts_;
};

// Of every (rank of the target, layer, head) the number of sources; each is to be 1.
using Counts = std::map<std::tuple<size_t, uint32_t, uint32_t>, int>;

void Count(Counts& counts, size_t target, const KvShare& share) {
  const KvRange& range = share.range;
  for (uint32_t layer = 0; layer < range.layers; ++layer) {
    for (uint32_t head = 0; head < range.heads.count; ++head) {
      ++counts[{target, range.first_layer + layer, range.heads.first + head}];
    }
  }
}

Counts Wanted(const Instance& dst, const KvModel& model, uint32_t first, uint32_t layers) {
  Counts wanted;
  for (size_t i = 0; i < dst.size(); ++i) {
    const KvShard& shard = dst.layout(i).shard();
    const auto [head, heads] = HeadRange(model.heads, shard.tp_size, shard.tp_rank);
    for (uint32_t l = 0; l < shard.layers; ++l) {
      const uint32_t layer = shard.first_layer + l;
      if (layer < first || layer >= first + layers) continue;
      for (uint32_t h = 0; h < heads; ++h) wanted[{i, layer, head + h}] = 1;
    }
  }
  return wanted;
}

TEST(KvGroup, EveryHeadAndLayerHasOneSourceWhoeverAsks) {
  const std::vector<std::vector<uint32_t>> stages = {{4}, {2, 2}, {1, 3}};
  for (const uint32_t heads : {1u, 2u, 4u}) {
    const KvModel model{.layers = 4, .heads = heads, .k_size = 1, .v_size = 1};
    for (const uint32_t src_tp : {1u, 2u, 4u, 8u}) {
      for (const uint32_t dst_tp : {1u, 2u, 4u, 8u}) {
        for (const auto& src_stages : stages) {
          for (const auto& dst_stages : stages) {
            const Instance src(model, src_tp, src_stages);
            const Instance dst(model, dst_tp, dst_stages);
            for (const auto& [first, layers] : {std::pair{0u, 4u}, {1u, 2u}, {3u, 1u}}) {
              const KvRange asked{{0, heads}, first, layers};
              Counts written;
              for (size_t s = 0; s < src.size(); ++s) {
                ASSERT_OK(CheckKvGroup(src.layout(s), dst.ranks(), Direction::kWrite));
                for (const KvShare& share :
                     KvShares(src.layout(s), dst.ranks(), Direction::kWrite, asked)) {
                  Count(written, share.rank, share);
                }
              }
              Counts read;
              for (size_t d = 0; d < dst.size(); ++d) {
                ASSERT_OK(CheckKvGroup(dst.layout(d), src.ranks(), Direction::kRead));
                for (const KvShare& share :
                     KvShares(dst.layout(d), src.ranks(), Direction::kRead, asked)) {
                  Count(read, d, share);
                }
              }
              const Counts wanted = Wanted(dst, model, first, layers);
              ASSERT_EQ(written, wanted) << src_tp << " -> " << dst_tp;
              ASSERT_EQ(read, wanted) << src_tp << " -> " << dst_tp;
            }
          }
        }
      }
    }
  }
}

// What a worker is told to meet is what it exchanges something with, and is enough: without any one
// of them that it exchanges something with the group is refused. Readers are counted as they read.
TEST(KvGroup, TheRanksToMeetAreEnoughAndNoneIsTooMany) {
  const std::vector<std::vector<uint32_t>> stages = {{4}, {2, 2}, {1, 3}, {1, 1, 2}};
  const auto begins = [](const std::vector<uint32_t>& lengths) {
    std::vector<uint32_t> firsts;
    uint32_t next = 0;
    for (const uint32_t length : lengths) {
      firsts.push_back(next);
      next += length;
    }
    return firsts;
  };
  for (const uint32_t heads : {1u, 2u, 4u}) {
    const KvModel model{.layers = 4, .heads = heads, .k_size = 1, .v_size = 1};
    for (const uint32_t own_tp : {1u, 2u, 4u}) {
      for (const uint32_t other_tp : {1u, 2u, 8u}) {
        for (const auto& own_stages : stages) {
          for (const auto& other_stages : stages) {
            const Instance own(model, own_tp, own_stages);
            const Instance other(model, other_tp, other_stages);
            const KvDivision division{.tp_size = other_tp, .stages = begins(other_stages)};
            std::map<uint32_t, uint32_t> readers;
            for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
              for (size_t i = 0; i < own.size(); ++i) {
                const KvLayout& layout = own.layout(i);
                const auto found = direction == Direction::kRead
                                       ? RanksToRead(model, layout.shard(), division)
                                       : RanksToWrite(model, layout.shard(), division);
                ASSERT_OK(found);
                std::set<uint32_t> with;
                for (const KvShare& share :
                     KvShares(layout, other.ranks(), direction, {{0, heads}, 0, 4})) {
                  with.insert(static_cast<uint32_t>(share.rank));
                  if (direction == Direction::kRead) ++readers[static_cast<uint32_t>(share.rank)];
                }
                std::vector<KvRank> group;
                for (const uint32_t rank : *found) group.push_back(other.ranks()[rank]);
                if (with.empty()) continue;
                ASSERT_OK(CheckKvGroup(layout, group, direction));
                for (size_t k = 0; k < group.size(); ++k) {
                  auto less = group;
                  less.erase(less.begin() + static_cast<ptrdiff_t>(k));
                  const bool needed = with.contains((*found)[k]);
                  ASSERT_EQ(!less.empty() && CheckKvGroup(layout, less, direction).ok(),
                            !needed && !less.empty());
                  // What is not needed is there to be told that nobody reads it.
                  ASSERT_TRUE(needed || (direction == Direction::kRead && i == 0 &&
                                         KvReaders(layout, begins(own_stages),
                                                   other.layout((*found)[k])) == 0));
                }
              }
            }
            for (uint32_t rank = 0; rank < other.size(); ++rank) {
              ASSERT_EQ(KvReaders(own.layout(0), begins(own_stages), other.layout(rank)),
                        readers[rank]);
            }
          }
        }
      }
    }
  }
}

TEST(KvGroup, StagesThatAreNone) {
  const KvModel model{.layers = 4, .heads = 2, .k_size = 1, .v_size = 1};
  const KvShard shard{.tp_rank = 0, .tp_size = 1, .first_layer = 0, .layers = 4};
  const auto refused = [&](uint32_t tp, std::vector<uint32_t> stages) {
    return !RanksToRead(model, shard, {tp, stages}).ok() &&
           !RanksToWrite(model, shard, {tp, std::move(stages)}).ok();
  };
  EXPECT_TRUE(refused(1, {}));
  EXPECT_TRUE(refused(1, {1}));
  EXPECT_TRUE(refused(1, {0, 0}));
  EXPECT_TRUE(refused(1, {0, 3, 2}));
  EXPECT_TRUE(refused(1, {0, 4}));
  EXPECT_TRUE(refused(0, {0}));
  EXPECT_TRUE(refused(3, {0}));
  EXPECT_FALSE(refused(4, {0, 3}));
  const KvLayout half = LayoutOf(model, {0, 1, 2, 2});
  EXPECT_OK(CheckStages(half, std::vector<uint32_t>{0, 2}));
  EXPECT_OK(CheckStages(half, std::vector<uint32_t>{0, 1, 2}));
  for (const std::vector<uint32_t>& stages : {std::vector<uint32_t>{}, {0}, {0, 1}, {0, 2, 3}}) {
    EXPECT_TRUE(Fails(CheckStages(half, stages), absl::StatusCode::kInvalidArgument,
                      {"layers 2 to 3", "KvOptions::stages"}));
  }
}

TEST(KvGroup, LayersThatThereAreNotAreNoShares) {
  const KvModel model{.layers = 4, .heads = 1, .k_size = 1, .v_size = 1};
  const Instance group(model, 1, {4});
  const auto shares = [&](Direction direction, uint32_t first, uint32_t layers) {
    return KvShares(group.layout(0), group.ranks(), direction, {{0, 1}, first, layers});
  };
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    EXPECT_TRUE(shares(direction, 0, 0).empty());
    EXPECT_TRUE(shares(direction, 4, 1).empty());
    EXPECT_EQ(shares(direction, 1, UINT32_MAX),
              std::vector<KvShare>({{.range = {.heads = {0, 1}, .first_layer = 1, .layers = 3}}}));
  }
}

TEST(KvGroup, OnlyTheHeadsThatAreAskedFor) {
  const KvModel model{.layers = 2, .heads = 4, .k_size = 1, .v_size = 1};
  const Instance src(model, 2, {2});
  const Instance dst(model, 1, {2});
  for (uint32_t head = 0; head < 4; ++head) {
    const KvRange asked{.heads = {head, 1}, .layers = 2};
    for (uint32_t rank = 0; rank < 2; ++rank) {
      const auto shares = KvShares(src.layout(rank), dst.ranks(), Direction::kWrite, asked);
      EXPECT_EQ(shares, head / 2 == rank ? std::vector<KvShare>({{.range = asked}})
                                         : std::vector<KvShare>());
    }
  }
}

class BadGroup : public ::testing::Test {
 protected:
  ::testing::AssertionResult Refused(std::initializer_list<const char*> texts) const {
    return Fails(CheckKvGroup(own_, group_.ranks(), Direction::kRead),
                 absl::StatusCode::kInvalidArgument, texts);
  }

  const KvModel model_{.layers = 4, .heads = 4, .k_size = 1, .v_size = 1};
  const KvLayout own_ = LayoutOf(model_, {0, 1, 0, 4});
  Instance group_{model_, 2, {2, 2}};
};

TEST_F(BadGroup, NothingIsWrongWithThis) {
  EXPECT_OK(CheckKvGroup(own_, group_.ranks(), Direction::kRead));
}

TEST_F(BadGroup, Empty) {
  while (group_.size() > 0) group_.Remove(0);
  EXPECT_TRUE(Refused({"empty"}));
}

TEST_F(BadGroup, ARankIsMissing) {
  group_.Remove(2);
  EXPECT_TRUE(Refused({"rank 0 of 2 with layers 2 to 3 is missing"}));
}

TEST_F(BadGroup, TheLastRankIsMissing) {
  group_.Remove(1);
  EXPECT_TRUE(Refused({"rank 1 of 2 with layers 0 to 1 is missing"}));
}

TEST_F(BadGroup, TheFirstStageIsMissing) {
  group_.Remove(0);
  group_.Remove(0);
  EXPECT_TRUE(Refused({"rank 0 of 2 with layers 0 to 1 is missing"}));
}

TEST_F(BadGroup, TheLastStageIsMissing) {
  group_.Remove(2);
  group_.Remove(2);
  EXPECT_TRUE(Refused({"rank 0 of 2 with layers 2 to 3 is missing"}));
}

TEST_F(BadGroup, ARankIsThereTwice) {
  group_.Add("again", LayoutOf(model_, {1, 2, 2, 2}));
  EXPECT_TRUE(Refused({"1/1 and again are both rank 1 of 2 with layers 2 to 3"}));
}

TEST_F(BadGroup, StagesOverlap) {
  group_.Add("between", LayoutOf(model_, {0, 2, 1, 2}));
  EXPECT_TRUE(Refused({"between has layers 1 to 2, of which 1/0 has some"}));
}

TEST_F(BadGroup, StagesOfUnlikeLength) {
  group_.Remove(1);
  group_.Add("longer", LayoutOf(model_, {1, 2, 0, 3}));
  EXPECT_TRUE(Refused({"longer has layers 0 to 2 and 0/0 layers 0 to 1"}));
}

TEST_F(BadGroup, AnotherTensorParallelism) {
  group_.Add("four", LayoutOf(model_, {3, 4, 0, 2}));
  EXPECT_TRUE(Refused({"0/0 has tp_size 2 and four 4"}));
}

TEST_F(BadGroup, AnotherModel) {
  KvModel other = model_;
  other.fingerprint = 0xbeef;
  group_.Add("stranger", LayoutOf(other, {0, 2, 0, 2}));
  EXPECT_TRUE(Refused({"stranger", "fingerprint", "0xbeef"}));
}

}  // namespace
}  // namespace kvxfer::testing
