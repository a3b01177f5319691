// Runs the contract over the libcuda.so.1 that the dynamic linker finds. Where there is no driver
// or no GPU it says so in one line and exits with 77.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/cuda.h"

int main(int argc, char** argv) {
  if (const auto status = kvxfer::testing::RunIfContractChild(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  if (const std::string why = kvxfer::testing::WhyNoCuda(); !why.empty()) {
    std::printf("%s\n", why.c_str());
    return 77;
  }
  int version = 0;
  char name[128] = "?";
  kvxfer::testing::Cuda().cuDriverGetVersion(&version);
  kvxfer::testing::Cuda().cuDeviceGetName(name, sizeof(name), 0);
  std::printf("CUDA driver %d.%d%s, %d of %s\n", version / 1000, version % 1000 / 10,
              kvxfer::testing::IsStandIn() ? " (stand-in)" : "", kvxfer::testing::DeviceCount(),
              name);
  return RUN_ALL_TESTS();
}
