// Ids that the application changes while they are read: a list is refused or good, and never one
// whose ids name a block that is not there.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "src/core/kv/kv_block_list.h"
#include "src/core/plan/block_list.h"
#include "tests/support/scale.h"

namespace kvxfer {
namespace {

using kvxfer::testing::kThreadSanitizer;
using kvxfer::testing::Scaled;

constexpr uint32_t kBlocks = 64;

// A list of ids of which another thread changes one again and again, to one that is there not.
class ChangingIds {
 public:
  ChangingIds() : ids_(kBlocks) {
    std::iota(ids_.begin(), ids_.end(), 0U);
    std::reverse(ids_.begin(), ids_.end());
    changer_ = std::thread([this] {
      for (uint32_t turn = 0; !ends_; ++turn) {
        const std::atomic_ref<uint32_t> id(ids_[kBlocks / 2]);
        id = turn % 2 == 0 ? 100'000'000 + turn : kBlocks / 2 - 1;
      }
    });
  }
  ~ChangingIds() {
    ends_ = true;
    changer_.join();
  }
  std::span<const uint32_t> ids() const { return ids_; }

 private:
  std::vector<uint32_t> ids_;
  std::atomic<bool> ends_{false};
  std::thread changer_;
};

void ExpectGood(const absl::StatusOr<BlockList>& list, int& good) {
  if (!list.ok()) {
    ASSERT_EQ(list.status().code(), absl::StatusCode::kInvalidArgument);
    return;
  }
  ++good;
  for (const std::span<const uint32_t> ids : {list->local_ids(), list->remote_ids()}) {
    ASSERT_LT(*std::ranges::max_element(ids), kBlocks);
  }
}

TEST(ChangingIds, PagedBlocks) {
  if (kThreadSanitizer) GTEST_SKIP() << "the race is what is tried";
  const std::vector<PagedRegion> here{
      {.base = 4096, .block_bytes = 8, .stride = 8, .count = kBlocks}};
  const RegionTable table({{RegionId{1}, 4096, 8 * kBlocks, Access::kReadWrite}}, "a table");
  IdPool pool;
  const ChangingIds changing;
  int good = 0;
  for (int i = 0; i < Scaled(20'000); ++i) {
    const Direction direction = i % 2 == 0 ? Direction::kWrite : Direction::kRead;
    auto list = BlockList::FromPaged({here, here, changing.ids(), changing.ids()}, direction, table,
                                     table, pool);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(list, good));
    if (list.ok()) list->ReleaseIds(pool);
  }
  EXPECT_GT(good, 0);
}

TEST(ChangingIds, KvCaches) {
  if (kThreadSanitizer) GTEST_SKIP() << "the race is what is tried";
  const KvModel model{.layers = 1, .heads = 1, .k_size = 1, .v_size = 0};
  const KvLayout layout = *KvLayout::FromParts(
      model, {.layers = 1}, kBlocks, 1, {{{.block_stride = 2, .token_stride = 2, .bytes = 2}}});
  const std::vector<uint64_t> tensors{4096};
  const RegionTable table({{RegionId{1}, 4096, 2 * kBlocks, Access::kReadWrite}}, "a table");
  IdPool pool;
  const ChangingIds changing;
  int good = 0;
  for (int i = 0; i < Scaled(20'000); ++i) {
    const KvSide side{.layout = &layout, .tensors = tensors, .ids = changing.ids()};
    auto list = ListKvBlocks(side, side, {.heads = {0, 1}, .layers = 1}, kBlocks,
                             i % 2 == 0 ? Direction::kWrite : Direction::kRead, table, table, pool);
    ASSERT_NO_FATAL_FAILURE(ExpectGood(list, good));
    if (list.ok()) list->ReleaseIds(pool);
  }
  EXPECT_GT(good, 0);
}

}  // namespace
}  // namespace kvxfer
