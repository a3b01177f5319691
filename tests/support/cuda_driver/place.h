// Where the bytes of an address are, and who may have them.
//
// Thread-safety: under the lock of the state. A Place keeps its memory mapped without it.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_PLACE_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_PLACE_H_

#include <memory>
#include <vector>

#include "tests/support/cuda_driver/state.h"

namespace kvxfer::testing::cuda_driver {

struct Place {
  std::byte* data = nullptr;
  bool pageable = false;  // host memory that the driver does not know
  std::vector<std::shared_ptr<View>> keep{};
};

// Whether kernels of the device may read the range, and write it.
bool MayReach(State* state, const Range& range, int device);

// What a kernel of `device` would find; false: an illegal address.
bool FindPlace(State* state, uint64_t at, size_t bytes, int device, Place* place);

// What a copy by `device` would find: also memory of devices that its kernels do not reach, and
// pageable host memory. INVALID_VALUE: neither.
CUresult FindCopyPlace(State* state, uint64_t at, size_t bytes, int device, Place* place);

// Whether a NIC may be given it.
bool MayGiveToNic(State* state, const Range& range);

// An attribute of a device; kNoAttribute: it has none of that name.
inline constexpr int kNoAttribute = -1000;
int DeviceAttribute(State* state, const Device& device, int attribute);
inline bool Has(State* state, const Device& device, CUdevice_attribute attribute) {
  return DeviceAttribute(state, device, attribute) > 0;
}

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_PLACE_H_
