#include "tests/support/cuda_driver/streams.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "tests/support/cuda_driver/state.h"

namespace kvxfer::testing::cuda_driver {

std::shared_ptr<Operation> Stream::Enqueue(std::function<CUresult()> run,
                                           std::vector<std::shared_ptr<Operation>> after) {
  auto operation = std::make_shared<Operation>();
  operation->run = std::move(run);
  operation->after = std::move(after);
  if (context_.sticky != CUDA_SUCCESS || stopping_) {
    operation->done = true;
    return operation;
  }
  // The legacy default stream waits for all blocking ones, and they for it.
  const auto add = [&](const Stream& other) {
    if (other.last_ != nullptr && !other.last_->done) operation->after.push_back(other.last_);
  };
  if (kind_ == Kind::kDefault) {
    for (const auto& [id, stream] : state_.streams) {
      if (&stream->context_ == &context_ && stream->kind_ == Kind::kBlocking) add(*stream);
    }
    for (const auto& [thread, stream] : context_.thread_streams) add(*stream);
  } else if (kind_ == Kind::kBlocking && context_.default_stream != nullptr) {
    add(*context_.default_stream);
  }
  if (!worker_.joinable()) worker_ = std::thread([this] { Work(); });
  queue_.push_back(operation);
  last_ = operation;
  state_.changed.notify_all();
  return operation;
}

bool Stream::Ready(const Operation& operation) const {
  if (stopping_ || context_.sticky != CUDA_SUCCESS) return true;
  return !state_.paused &&
         std::ranges::all_of(operation.after, [](const auto& other) { return other->done; });
}

void Stream::Work() {
  Lock lock(state_.mutex);
  for (;;) {
    state_.changed.wait(lock, [&] { return stopping_ || closing_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const std::shared_ptr<Operation> operation = queue_.front();
    state_.changed.wait(lock, [&] { return Ready(*operation); });
    if (!stopping_ && context_.sticky == CUDA_SUCCESS) {
      const CUresult result = Run(&lock, *operation);
      if (result != CUDA_SUCCESS) context_.sticky = result;
    }
    operation->run = nullptr;
    operation->after.clear();
    operation->done = true;
    queue_.pop_front();
    state_.changed.notify_all();
  }
  finished_ = true;
}

CUresult Stream::Run(Lock* lock, const Operation& operation) {
  const CUresult fault = operation.run == nullptr ? CUDA_SUCCESS : state_.faults.CountOperation();
  if (fault != CUDA_SUCCESS) return fault;
  const int64_t longest = state_.delay_us;
  const auto delay = longest == 0 ? 0 : std::uniform_int_distribution<int64_t>(0, longest)(random_);
  lock->unlock();
  if (delay > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay));
  const CUresult result = operation.run == nullptr ? CUDA_SUCCESS : operation.run();
  lock->lock();
  return result;
}

void Stream::Close(bool at_once) {
  closing_ = true;
  stopping_ = stopping_ || at_once;
  state_.changed.notify_all();
}

void Stream::Join() {
  if (!worker_.joinable()) return;
  if (worker_.get_id() == std::this_thread::get_id()) {  // exit() within a host function
    worker_.detach();
  } else {
    worker_.join();
  }
}

Stream* FindStream(State* state, Context* context, CUstream handle, const char* call) {
  const auto value = reinterpret_cast<uint64_t>(handle);
  const auto make = [&](Stream::Kind kind) {
    return std::make_shared<Stream>(state, context, kind,
                                    static_cast<uint64_t>(state->config.seed));
  };
  if (value == 0 || value == 1) {
    ++state->default_stream_uses;
    if (state->config.no_default_stream != 0) {
      Die(std::string(call) + " uses the legacy default stream");
    }
    std::shared_ptr<Stream>& stream = context->default_stream;
    if (stream == nullptr) stream = make(Stream::Kind::kDefault);
    return stream.get();
  }
  if (value == 2) {
    std::shared_ptr<Stream>& stream = context->thread_streams[std::this_thread::get_id()];
    if (stream == nullptr) stream = make(Stream::Kind::kBlocking);
    return stream.get();
  }
  const auto found = state->streams.find(ToId(handle));
  if (found == state->streams.end() || &found->second->context() != context) return nullptr;
  return found->second.get();
}

void AwaitIfAtOnce(State* state, Lock* lock, const Operation& operation) {
  if (state->config.at_once == 0) return;
  state->changed.wait(*lock, [&] { return operation.done; });
}

void WaitIdle(State* state, Lock* lock, const Context& context) {
  state->changed.wait(*lock, [&] {
    if (context.sticky != CUDA_SUCCESS || state->ended) return true;
    const auto idle = [&](const std::shared_ptr<Stream>& stream) {
      return stream == nullptr || &stream->context() != &context || stream->idle();
    };
    return idle(context.default_stream) && std::ranges::all_of(state->leaving, idle) &&
           std::ranges::all_of(state->streams, idle, [](auto& entry) { return entry.second; }) &&
           std::ranges::all_of(context.thread_streams, idle,
                               [](auto& entry) { return entry.second; });
  });
}

}  // namespace kvxfer::testing::cuda_driver
