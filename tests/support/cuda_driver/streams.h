// Streams: each has a thread that runs its operations one after the other.
//
// Thread-safety: everything under the lock of the state; operations run without it.
#ifndef KVXFER_TESTS_SUPPORT_CUDA_DRIVER_STREAMS_H_
#define KVXFER_TESTS_SUPPORT_CUDA_DRIVER_STREAMS_H_

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "src/cuda/api.h"

namespace kvxfer::testing::cuda_driver {

struct Context;
struct State;

// Something that a stream does. It is over when `done`, done or dropped.
struct Operation {
  std::function<cuda::api::CUresult()> run{};  // null: nothing to do
  std::vector<std::shared_ptr<Operation>> after{};
  bool done = false;
};

class Stream {
 public:
  enum class Kind : uint8_t { kBlocking, kNonBlocking, kDefault };

  Stream(State* state, Context* context, Kind kind, uint64_t seed)
      : state_(*state), context_(*context), kind_(kind), random_(seed) {}

  // Appends an operation. Where the context was ruined it is dropped at once.
  std::shared_ptr<Operation> Enqueue(std::function<cuda::api::CUresult()> run,
                                     std::vector<std::shared_ptr<Operation>> after = {});
  bool idle() const { return queue_.empty(); }
  // What it will have done when everything is; null: nothing.
  const std::shared_ptr<Operation>& last() const { return last_; }

  // Lets the thread end: when the queue is empty, or at once. Then `finished`, and Join does not
  // wait. Join without the lock.
  void Close(bool at_once);
  bool finished() const { return !worker_.joinable() || finished_; }
  void Join();

  Context& context() const { return context_; }
  Kind kind() const { return kind_; }

 private:
  void Work();
  // Whether it may begin now.
  bool Ready(const Operation& operation) const;
  cuda::api::CUresult Run(std::unique_lock<std::mutex>* lock, const Operation& operation);

  State& state_;
  Context& context_;
  const Kind kind_;
  std::minstd_rand random_;
  std::deque<std::shared_ptr<Operation>> queue_{};
  std::shared_ptr<Operation> last_{};
  bool closing_ = false;
  bool stopping_ = false;
  bool finished_ = false;
  std::thread worker_{};
};

// The stream of a handle in the context, which null, CU_STREAM_LEGACY (1) and CU_STREAM_PER_THREAD
// (2) are too; null: there is none, or of another context. `call`: for who is not to use the
// default stream.
Stream* FindStream(State* state, Context* context, cuda::api::CUstream handle, const char* call);

// Waits for the operation where the configuration says AT_ONCE.
void AwaitIfAtOnce(State* state, std::unique_lock<std::mutex>* lock, const Operation& operation);

// Waits until every stream of the context has done everything.
void WaitIdle(State* state, std::unique_lock<std::mutex>* lock, const Context& context);

// Whether this thread runs a host function of a stream.
bool InHostFunction();

}  // namespace kvxfer::testing::cuda_driver

#endif  // KVXFER_TESTS_SUPPORT_CUDA_DRIVER_STREAMS_H_
