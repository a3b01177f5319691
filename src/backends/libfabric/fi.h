// libfabric's objects as owning pointers, and its errors as Status.

#ifndef KVXFER_BACKENDS_LIBFABRIC_FI_H_
#define KVXFER_BACKENDS_LIBFABRIC_FI_H_

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::libfabric {

template <typename T>
struct FiClose {
  void operator()(T* object) const { fi_close(&object->fid); }
};
template <typename T>
using FiPtr = std::unique_ptr<T, FiClose<T>>;

struct FiFreeInfo {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using InfoPtr = std::unique_ptr<fi_info, FiFreeInfo>;

// `rc`: the negative result of `call`.
inline absl::Status FiError(std::string_view call, int64_t rc) {
  const int error = static_cast<int>(-rc);
  return absl::UnavailableError(
      absl::StrCat(ToAbsl(call), ": ", fi_strerror(error), " (", error, ")"));
}

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_FI_H_
