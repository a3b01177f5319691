// Cases of the stand-in driver alone.
#ifndef KVXFER_TESTS_CUDA_CONTRACT_STANDIN_H_
#define KVXFER_TESTS_CUDA_CONTRACT_STANDIN_H_

#include <gtest/gtest.h>

#include "tests/cuda_contract/cuda.h"
#include "tests/support/cuda_driver/hooks.h"

namespace kvxfer::testing {

class CudaStandIn : public ::testing::Test {
 protected:
  void SetUp() override {
    if (hooks_ == nullptr) GTEST_SKIP() << "a real driver";
  }
  cuda_driver::LiveObjects Live() const {
    cuda_driver::LiveObjects live;
    hooks_->kvxfer_standin_live(&live);
    return live;
  }
  const Current current_;
  const cuda_driver::Hooks* const hooks_ = cuda_driver::FindHooks();
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_CUDA_CONTRACT_STANDIN_H_
