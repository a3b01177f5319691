// Runs that a test writes by hand, as the block list of an op.
#ifndef KVXFER_TESTS_SUPPORT_RUN_BLOCKS_H_
#define KVXFER_TESTS_SUPPORT_RUN_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvxfer/block_range.h"

namespace kvxfer::testing {

// Owns a block list with one descriptor for each run. It must outlive the ops that name its range,
// and it stays where it is; hold it by unique_ptr to pass it on.
class RunBlocks {
 public:
  explicit RunBlocks(const std::vector<Run>& runs) {
    for (size_t i = 0; i < runs.size(); ++i) {
      const Run& run = runs[i];
      const auto region = static_cast<uint32_t>(i);
      blocks_.push_back({.local = run.local,
                         .remote = run.remote,
                         .bytes = run.bytes,
                         .local_region = region,
                         .remote_region = region});
      registrations_.push_back(run.registration);
      keys_.push_back(run.key);
      bytes_ += run.bytes;
      if (run.bytes > 0) ++pieces_;
    }
    view_ = {.descriptors = blocks_, .registrations = registrations_, .keys = keys_};
  }
  RunBlocks(const RunBlocks&) = delete;
  RunBlocks& operator=(const RunBlocks&) = delete;

  const BlockView& view() const { return view_; }
  // All of them.
  BlockRange range() const {
    if (bytes_ == 0) return {};
    return {.view = &view_, .bytes = bytes_, .pieces = pieces_};
  }

 private:
  std::vector<Block> blocks_;
  std::vector<const Registration*> registrations_;
  std::vector<const RemoteKey*> keys_;
  BlockView view_;
  uint64_t bytes_ = 0;
  uint32_t pieces_ = 0;  // with bytes
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_RUN_BLOCKS_H_
