// The tests' main: prints the seed, and is also what the tests' child processes run.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/support/child_process.h"
#include "tests/support/scale.h"

int main(int argc, char** argv) {
  if (const auto status = kvxfer::testing::RunIfChild(argc, argv)) return *status;
  ::testing::InitGoogleTest(&argc, argv);
  std::printf("KVXFER_TEST_SEED=%llu%s\n",
              static_cast<unsigned long long>(kvxfer::testing::TestSeed()),
              kvxfer::testing::kSlow ? " (slow: counts / 10, time bounds x 10)" : "");
  return RUN_ALL_TESTS();
}
