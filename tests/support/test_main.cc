// The tests' main: prints the seed, and is also what the tests' child processes run.
#include <gtest/gtest.h>

#include <cstdio>
#include <string_view>

#include "src/cuda/present.h"
#include "tests/support/child_process.h"
#include "tests/support/flavour.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/scale.h"

namespace {

// What runs over the devices in memory with GPU memory, in all suites: they move the stand-in's.
class SkipVerbsCuda : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    const std::string_view over = test.value_param() == nullptr ? "" : test.value_param();
    if (over.find(kvxfer::testing::VerbsCudaFlavour().name) == std::string_view::npos) return;
    KVXFER_NEEDS_STAND_IN();
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (const auto status = kvxfer::testing::RunIfChild(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  std::printf("KVXFER_TEST_SEED=%llu%s\n",
              static_cast<unsigned long long>(kvxfer::testing::TestSeed()),
              kvxfer::testing::kSlow ? " (slow: counts / 10, time bounds x 10)" : "");
  // Not asked of the driver itself, which some cases must find unloaded.
  if (!kvxfer::cuda::DriverPresent().ok()) {
    std::printf(
        "No CUDA driver, so cases of GPU memory fail. ctest runs this program with "
        "LD_LIBRARY_PATH=%s\n",
        KVXFER_STANDIN_CUDA_DIR);
  }
  ::testing::UnitTest::GetInstance()->listeners().Append(new SkipVerbsCuda);
  return RUN_ALL_TESTS();
}
