// GPU memory of several allocations side by side (cuMemCreate, cuMemMap), as PyTorch's expandable
// segments are, of the stand-in driver or a real one.
#ifndef KVXFER_TESTS_SUPPORT_GPU_PIECES_H_
#define KVXFER_TESTS_SUPPORT_GPU_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cuda/driver.h"

namespace kvxfer::testing {

class GpuPieces {
 public:
  // `bytes` of each, multiples of kGranule. `gpu_direct`: NICs may be given it.
  static absl::StatusOr<std::unique_ptr<GpuPieces>> Allocate(int device,
                                                             std::span<const size_t> bytes,
                                                             bool gpu_direct = true);
  ~GpuPieces();

  static constexpr size_t kGranule = size_t{2} << 20;

  uint64_t address() const { return at_; }
  size_t size() const { return bytes_; }
  MemorySpan span(size_t offset = 0, size_t bytes = SIZE_MAX) const;

 private:
  GpuPieces(const cuda::Driver* driver, int device) : driver_(driver), device_(device) {}
  absl::Status Map(std::span<const size_t> bytes, bool gpu_direct);

  const cuda::Driver* const driver_;
  const int device_;
  cuda::api::CUdeviceptr at_ = 0;
  size_t bytes_ = 0;
  std::vector<size_t> mapped_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_GPU_PIECES_H_
