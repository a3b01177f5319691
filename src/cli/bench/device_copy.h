// The copy rates of GPUs without kvxfer, for comparison with its transfers.
//
// Thread-safety: a function without state.
#ifndef KVXFER_CLI_BENCH_DEVICE_COPY_H_
#define KVXFER_CLI_BENCH_DEVICE_COPY_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli {

// In 10^9 bytes a second, counting each byte once; the best of a few turns. Zero: not measured.
struct DeviceCopyRates {
  double whole = 0;      // one large copy by the driver
  double scattered = 0;  // blocks in random order on both sides, by one copy kernel
};

// Copies from the GPU of one side to that of the other, or within a GPU if only one side has one.
// Copies at most as many of the `blocks` blocks as one kernel takes. The rates are zero if neither
// side has a GPU or a GPU lacks memory for the copy; `scattered` is also zero if one GPU cannot
// reach the other.
absl::StatusOr<DeviceCopyRates> MeasureDeviceCopy(const MemorySides& sides, uint64_t block_bytes,
                                                  uint64_t blocks);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_DEVICE_COPY_H_
