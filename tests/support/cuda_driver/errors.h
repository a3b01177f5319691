// Names and words of CUDA's errors.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_ERRORS_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_ERRORS_H_

#include <optional>
#include <string_view>

#include "src/cuda/api.h"

namespace kvxfer::testing::cuda_driver {

struct ErrorText {
  cuda::api::CUresult code;
  const char* name;  // "CUDA_ERROR_INVALID_VALUE"
  const char* words;
};

const ErrorText* FindError(cuda::api::CUresult code);
std::optional<cuda::api::CUresult> ErrorNamed(std::string_view name);

// Errors that leave a context unusable for good.
constexpr bool IsSticky(cuda::api::CUresult code) {
  return code == cuda::api::CUDA_ERROR_ILLEGAL_ADDRESS ||
         code == cuda::api::CUDA_ERROR_LAUNCH_FAILED;
}

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_ERRORS_H_
