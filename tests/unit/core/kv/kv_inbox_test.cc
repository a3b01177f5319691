// Parts of requests as they come in: whole with the last one and never before, layers in order, and
// what is refused.
#include "src/core/kv/kv_inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/kv_oracle.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::seconds;

constexpr Time kStart{};

// Rank `rank` of `tp` with layers `first` to `first + layers` of 8, of `heads` heads.
KvLayout InboxLayout(uint32_t heads, uint32_t tp, uint32_t rank, uint32_t first, uint32_t layers) {
  const KvModel model{.layers = 8, .heads = heads, .k_size = 1, .v_size = 1};
  const auto [from, count] = HeadRange(heads, tp, rank);
  const Cache cache = MakeCache(model, {rank, tp, first, layers}, from, count, Form::kPacked, "BHN",
                                1, 1, nullptr, 0);
  return *KvLayout::FromTensors(cache.model, cache.shard, cache.tensors);
}

KvPart Part(KvHeads heads, uint32_t first_layer, uint32_t layers, std::string request = "r") {
  return {.request = std::move(request),
          .blocks_hash = 1,
          .range = {.heads = heads, .first_layer = first_layer, .layers = layers}};
}

// Heads and layers that are there, plainly.
class Oracle {
 public:
  Oracle(uint32_t first_head, uint32_t heads, uint32_t first_layer, uint32_t layers)
      : first_head_(first_head), heads_(heads), first_layer_(first_layer), layers_(layers) {}
  void Take(const KvPart& part) {
    const KvRange& range = part.range;
    for (uint32_t l = range.first_layer; l < range.first_layer + range.layers; ++l) {
      for (uint32_t h = range.heads.first; h < range.heads.first + range.heads.count; ++h) {
        there_.insert({l, h});
      }
    }
  }
  bool whole() const { return there_.size() == size_t{heads_} * layers_; }
  uint32_t ready() const {
    for (uint32_t l = 0; l < layers_; ++l) {
      for (uint32_t h = 0; h < heads_; ++h) {
        if (!there_.contains({first_layer_ + l, first_head_ + h})) return l;
      }
    }
    return layers_;
  }

 private:
  const uint32_t first_head_;
  const uint32_t heads_;
  const uint32_t first_layer_;
  const uint32_t layers_;
  std::set<std::pair<uint32_t, uint32_t>> there_;
};

TEST(KvInbox, EveryOrderOfParts) {
  // Heads 4 to 8 of layers 2 to 6: two sources, each in two or three steps.
  std::vector<KvPart> parts = {Part({4, 2}, 2, 2), Part({4, 2}, 4, 2), Part({6, 2}, 2, 1),
                               Part({6, 2}, 3, 2), Part({6, 2}, 5, 1)};
  std::vector<size_t> order = {0, 1, 2, 3, 4};
  do {
    KvInbox inbox(InboxLayout(8, 2, 1, 2, 4));
    Oracle oracle(4, 4, 2, 4);
    for (size_t i = 0; i < order.size(); ++i) {
      ASSERT_OK_AND_ASSIGN(const KvInbox::Taken taken,
                           inbox.Take(parts[order[i]], "p", kStart + seconds(1)));
      const bool whole = taken.whole;
      oracle.Take(parts[order[i]]);
      ASSERT_EQ(whole, oracle.whole());
      ASSERT_EQ(whole, i + 1 == order.size());
      ASSERT_EQ(*inbox.LayersReady("r"), oracle.ready());
    }
    ASSERT_EQ(inbox.under_way(), 0u);
    ASSERT_TRUE(inbox.Expire(kStart + seconds(2)).empty());
  } while (std::ranges::next_permutation(order).found);
}

TEST(KvInbox, ManyRequestsAtOnce) {
  std::mt19937_64 random(TestSeed());
  KvInbox inbox(InboxLayout(8, 2, 0, 0, 8));
  // Each request is cut at random: every head alone, its layers in runs.
  std::vector<KvPart> parts;
  std::map<std::string, Oracle> oracles;
  for (int r = 0; r < Scaled(500); ++r) {
    const std::string name = "request " + std::to_string(r);
    oracles.try_emplace(name, 0, 4, 0, 8);
    for (uint32_t head = 0; head < 4; ++head) {
      for (uint32_t layer = 0; layer < 8;) {
        const uint32_t layers = 1 + static_cast<uint32_t>(random() % (8 - layer));
        parts.push_back(Part({head, 1}, layer, layers, name));
        layer += layers;
      }
    }
  }
  std::ranges::shuffle(parts, random);
  size_t whole = 0;
  for (const KvPart& part : parts) {
    ASSERT_OK_AND_ASSIGN(const KvInbox::Taken taken, inbox.Take(part, "p", kStart + seconds(1)));
    const bool last = taken.whole;
    Oracle& oracle = oracles.at(part.request);
    oracle.Take(part);
    ASSERT_EQ(last, oracle.whole());
    ASSERT_EQ(*inbox.LayersReady(part.request), oracle.ready());
    whole += last ? 1 : 0;
  }
  EXPECT_EQ(whole, oracles.size());
  EXPECT_EQ(inbox.under_way(), 0u);
}

class InboxOfFour : public ::testing::Test {
 protected:
  absl::StatusOr<KvInbox::Taken> Take(const KvPart& part) {
    return inbox_.Take(part, "prefill-1", expires_);
  }
  ::testing::AssertionResult Refused(const KvPart& part, absl::StatusCode code,
                                     std::initializer_list<const char*> texts) {
    return Fails(Take(part), code, texts);
  }

  static constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  static constexpr auto kEnded = absl::StatusCode::kFailedPrecondition;
  KvInbox inbox_{InboxLayout(8, 2, 1, 2, 4)};  // heads 4 to 8, layers 2 to 6
  Time expires_ = kStart + seconds(10);
};

TEST_F(InboxOfFour, WhatTheCacheHasNotIsRefused) {
  EXPECT_TRUE(Refused(Part({3, 2}, 2, 4, "a"), kInvalid,
                      {"KV request a", "prefill-1", "2 heads from 3 on", "4 heads from 4"}));
  EXPECT_TRUE(Refused(Part({7, 2}, 2, 4, "b"), kInvalid, {"2 heads from 7"}));
  EXPECT_TRUE(Refused(Part({4, 0}, 2, 4, "c"), kInvalid, {"0 heads from 4"}));
  EXPECT_TRUE(Refused(Part({4, UINT32_MAX}, 2, 4, "d"), kInvalid, {"4294967295 heads from 4"}));
  EXPECT_TRUE(
      Refused(Part({4, 4}, 1, 4, "e"), kInvalid, {"4 layers from 1 on", "4 layers from 2 on"}));
  EXPECT_TRUE(Refused(Part({4, 4}, 3, 4, "f"), kInvalid, {"4 layers from 3 on"}));
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 0, "g"), kInvalid, {"0 layers from 2 on"}));
  EXPECT_EQ(inbox_.under_way(), 0u);
  // It ends a request that has begun.
  EXPECT_OK(Take(Part({4, 4}, 2, 3, "h")));
  EXPECT_TRUE(Refused(Part({4, 4}, 6, 1, "h"), kInvalid, {"1 layers from 6 on"}));
  EXPECT_TRUE(Refused(Part({4, 4}, 5, 1, "h"), kEnded, {"after its end"}));
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 4, ""), kInvalid, {"prefill-1", "0 bytes"}));
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 4, std::string(256, 'r')), kInvalid, {"256 bytes"}));
}

TEST_F(InboxOfFour, APartThatComesTwiceEndsTheRequest) {
  EXPECT_OK(Take(Part({4, 2}, 2, 4)));
  EXPECT_TRUE(Refused(Part({5, 2}, 5, 1), kInvalid, {"head 5 of layer 5", "there already"}));
  EXPECT_TRUE(Refused(Part({6, 2}, 2, 4), kEnded, {"KV request r", "prefill-1", "after its end"}));
}

TEST_F(InboxOfFour, PartsOfAttemptsAtOtherBlocksNeverAddUp) {
  EXPECT_OK(Take(Part({4, 2}, 2, 4)));
  KvPart other = Part({6, 2}, 2, 4);
  other.blocks_hash = 2;
  EXPECT_TRUE(Refused(other, kInvalid, {"other blocks"}));
  EXPECT_TRUE(Refused(Part({6, 2}, 2, 4), kEnded, {"after its end"}));
}

TEST_F(InboxOfFour, AWholeRequestIsNotBegunAnew) {
  ASSERT_OK_AND_ASSIGN(const KvInbox::Taken taken, Take(Part({4, 4}, 2, 4)));
  const bool whole = taken.whole;
  EXPECT_TRUE(whole);
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 4), kEnded, {"after its end"}));
  EXPECT_FALSE(inbox_.Drop("r"));
}

TEST_F(InboxOfFour, DroppedIsGone) {
  EXPECT_OK(Take(Part({4, 4}, 2, 3)));
  EXPECT_EQ(*inbox_.LayersReady("r"), 3u);
  EXPECT_TRUE(inbox_.Drop("r"));
  EXPECT_TRUE(Fails(inbox_.LayersReady("r"), absl::StatusCode::kAborted, {"r was given up"}));
  EXPECT_EQ(*inbox_.LayersReady("another"), 0u);
  EXPECT_TRUE(Refused(Part({4, 4}, 5, 1), kEnded, {"after its end"}));
  EXPECT_EQ(inbox_.NextExpiry(), std::nullopt);
}

TEST_F(InboxOfFour, MayBeDroppedBeforeItBegins) {
  EXPECT_FALSE(inbox_.Drop("r"));
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 4), kEnded, {"after its end"}));
}

TEST_F(InboxOfFour, ExpiryTellsWhatIsMissing) {
  EXPECT_OK(Take(Part({4, 4}, 2, 1)));
  EXPECT_OK(Take(Part({4, 1}, 3, 1)));
  EXPECT_EQ(inbox_.NextExpiry(), expires_);
  EXPECT_TRUE(inbox_.Expire(expires_ - Duration(1)).empty());
  const auto lost = inbox_.Expire(expires_);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].request, "r");
  EXPECT_EQ(lost[0].missing,
            "11 of 16 heads and layers are missing, the first of them head 5 of layer 3");
  EXPECT_TRUE(Refused(Part({5, 3}, 3, 1), kEnded, {"after its end"}));
}

TEST_F(InboxOfFour, ALaterPartMovesTheExpiry) {
  EXPECT_OK(Take(Part({4, 4}, 2, 1)));
  const Time first = std::exchange(expires_, expires_ + seconds(5));
  EXPECT_OK(Take(Part({4, 4}, 3, 1)));
  EXPECT_TRUE(inbox_.Expire(first).empty());
  EXPECT_EQ(inbox_.NextExpiry(), expires_);
  expires_ = first;
  EXPECT_OK(Take(Part({4, 4}, 4, 1))) << "an earlier one does not";
  EXPECT_TRUE(inbox_.Expire(first).empty());
  EXPECT_EQ(inbox_.Expire(first + seconds(5)).size(), 1u);
}

TEST_F(InboxOfFour, RemembersABoundedNumberOfEnds) {
  for (size_t i = 0; i <= KvInbox::kMaxReported; ++i) {
    ASSERT_OK(Take(Part({4, 4}, 2, 4, std::to_string(i))));
  }
  EXPECT_OK(Take(Part({4, 4}, 2, 1, "0"))) << "so long ago that it is forgotten";
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 1, "1"), kEnded, {"after its end"}));
}

TEST_F(InboxOfFour, TooManyAtOnce) {
  for (size_t i = 0; i < KvInbox::kMaxRequests; ++i) {
    ASSERT_OK(Take(Part({4, 4}, 2, 1, std::to_string(i))));
  }
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 1), absl::StatusCode::kResourceExhausted,
                      {"KV request r", "65536 others"}));
  EXPECT_OK(Take(Part({4, 4}, 3, 1, "0"))) << "those that are under way go on";
  EXPECT_TRUE(inbox_.Drop("1"));
  EXPECT_TRUE(Refused(Part({4, 4}, 2, 4), kEnded, {"after its end"})) << "a part is missing";
}

}  // namespace
}  // namespace kvxfer::testing
