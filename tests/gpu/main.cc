// Transfers of GPU memory, looked at by the GPU: over whatever driver the loader finds. Where there
// is no driver, no GPU or no kernel to look with, it says so in one line and exits with 77.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/cuda.h"
#include "tests/gpu/check_image.h"

int main(int argc, char** argv) {
  if (const auto status = kvxfer::testing::RunIfContractChild(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  std::string why = kvxfer::testing::WhyNoCuda();
  if (why.empty() && !kvxfer::testing::IsStandIn() && !kvxfer::testing::HasCheckKernels()) {
    why = "built without nvcc: there are no kernels to look at GPU memory with";
  }
  if (!why.empty()) {
    std::printf("%s\n", why.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
