// How fast GPUs copy without kvxfer's transfers: what those are compared with.
//
// Thread-safety: a function without state.
#ifndef KVXFER_CLI_BENCH_DEVICE_COPY_H_
#define KVXFER_CLI_BENCH_DEVICE_COPY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli {

// 10^9 bytes a second, each byte counted once; the best of a few turns. Zero: not measured.
struct DeviceCopyRates {
  double whole = 0;      // one large copy of the driver
  double scattered = 0;  // blocks from and to places in a random order, by one copy kernel
};

// From memory of the one side's GPU to that of the other's; where one side alone has a GPU, within
// that. Of `blocks` blocks as many as one kernel takes. Zeros where neither side has one, where the
// GPU has no room for it, and `scattered` where the one GPU does not reach the other.
absl::StatusOr<DeviceCopyRates> MeasureDeviceCopy(const MemorySides& sides, uint64_t block_bytes,
                                                  uint64_t blocks);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_DEVICE_COPY_H_
