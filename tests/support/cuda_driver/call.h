// How each exported function begins.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_CALL_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_CALL_H_

#include "tests/support/cuda_driver/state.h"

// The signatures are held to those of src/cuda/api.h by this.
extern "C" {
namespace kvxfer::testing::cuda_driver {
#define KVXFER_STANDIN_DECLARE(name, parameters) CUresult name parameters;
KVXFER_CUDA_CALLS(KVXFER_STANDIN_DECLARE)
KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_STANDIN_DECLARE)
#undef KVXFER_STANDIN_DECLARE
#define KVXFER_STANDIN_DECLARE(result, name, parameters) result name parameters;
KVXFER_STANDIN_HOOKS(KVXFER_STANDIN_DECLARE)
#undef KVXFER_STANDIN_DECLARE
}  // namespace kvxfer::testing::cuda_driver
}

namespace kvxfer::testing::cuda_driver {

enum class Needs : uint8_t {
  kNothing,
  kInit,     // cuInit has succeeded
  kContext,  // and a context is current that nothing has ruined
};

// A call under way: holds the lock. Where refused() is not CUDA_SUCCESS nothing may be done.
class Call {
 public:
  Call(Function function, Needs needs);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  CUresult refused() const { return refused_; }
  State& state() { return state_; }
  Lock& lock() { return lock_; }
  // The current one.
  Context& context() { return *context_; }
  Device& device() { return state_.devices[static_cast<size_t>(context_->device)]; }

 private:
  CUresult Begin(Function function, Needs needs);

  State& state_;
  Lock lock_{};
  Context* context_ = nullptr;
  CUresult refused_ = CUDA_SUCCESS;
};

#define KVXFER_STANDIN_ENTER(name, needs)  \
  Call call(Function::name, Needs::needs); \
  if (call.refused() != CUDA_SUCCESS) return call.refused()

// What a call is refused with while a stream is being captured.
CUresult CheckCapture(State* state, Function function);

// The contexts of this thread; the current one last.
std::vector<Context*>& ContextStack();

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_CALL_H_
