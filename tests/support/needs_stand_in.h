// For cases that ask the stand-in CUDA driver for what no other driver does (cuda_driver/hooks.h):
// over a real driver they are skipped.
//
//   KVXFER_NEEDS_STAND_IN();  // in SetUp or TestBody, before anything else
//
// Not where there is no driver at all: such a case fails then, as all cases of GPU memory do.
#ifndef KVXFER_TESTS_SUPPORT_NEEDS_STAND_IN_H_
#define KVXFER_TESTS_SUPPORT_NEEDS_STAND_IN_H_

#include <gtest/gtest.h>

#include "src/cuda/driver.h"
#include "tests/support/cuda_driver/hooks.h"

namespace kvxfer::testing {

// Loads the driver if there is one.
inline bool OverRealDriver() {
  return cuda::Driver::Get().ok() && cuda_driver::FindHooks() == nullptr;
}

}  // namespace kvxfer::testing

#define KVXFER_NEEDS_STAND_IN() \
  if (::kvxfer::testing::OverRealDriver()) GTEST_SKIP() << "needs the stand-in CUDA driver"

#endif  // KVXFER_TESTS_SUPPORT_NEEDS_STAND_IN_H_
