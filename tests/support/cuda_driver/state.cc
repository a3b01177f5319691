#include "tests/support/cuda_driver/state.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/errors.h"

namespace kvxfer::testing::cuda_driver {
namespace {

// The same in all processes until the host boots again.
CUuuid UuidOf(int index) {
  CUuuid uuid{};
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(boot, text);
  std::erase(text, '-');
  for (size_t i = 0; i < sizeof(uuid.bytes) && 2 * i + 1 < text.size(); ++i) {
    uuid.bytes[i] = static_cast<char>(std::strtoul(text.substr(2 * i, 2).c_str(), nullptr, 16));
  }
  uuid.bytes[15] = static_cast<char>(uuid.bytes[15] ^ (index + 1));
  return uuid;
}

uint64_t Random64() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

// Ends the threads before the process does.
struct AtExit {
  ~AtExit();
};

State*& StatePlace() {
  static State* place = nullptr;
  return place;
}

AtExit::~AtExit() {
  State* const state = StatePlace();
  if (state == nullptr || state->pid != getpid()) return;
  std::vector<std::shared_ptr<Stream>> streams;
  {
    const Lock lock(state->mutex);
    state->ended = true;
    for (Device& device : state->devices) {
      if (device.context.default_stream != nullptr) {
        streams.push_back(device.context.default_stream);
      }
      for (auto& [thread, stream] : device.context.thread_streams) streams.push_back(stream);
    }
    for (auto& [id, stream] : state->streams) streams.push_back(stream);
    for (auto& stream : state->leaving) streams.push_back(stream);
    for (auto& stream : streams) stream->Close(true);
  }
  for (auto& stream : streams) stream->Join();
}

}  // namespace

State::State()
    : pid(getpid()),
      config(ConfigFromEnvironment()),
      incarnation(Random64()),
      faults(config.fail),
      delay_us(config.delay_us) {
  for (const int index : VisibleDevices(static_cast<int>(config.devices))) {
    Device& device = devices.emplace_back();
    device.index = index;
    device.uuid = UuidOf(index);
    device.context.device = static_cast<int>(devices.size()) - 1;
  }
  if (!config.init.empty() && !ErrorNamed(config.init).has_value()) {
    Die("no such error: KVXFER_STANDIN_INIT=" + config.init);
  }
}

State& TheState() {
  static State* const state = StatePlace() = new State;  // for what still runs while we exit
  static AtExit at_exit;
  return *state;
}

Device* State::FindDevice(int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(devices.size())) return nullptr;
  return &devices[static_cast<size_t>(ordinal)];
}

Device* State::FindDevice(const CUuuid& uuid) {
  for (Device& device : devices) {
    if (std::memcmp(&device.uuid, &uuid, sizeof(uuid)) == 0) return &device;
  }
  return nullptr;
}

Context* State::FindContext(CUcontext handle) {
  for (Device& device : devices) {
    if (device.context.handle() == handle) return &device.context;
  }
  return nullptr;
}

bool CanReach(const Device& from, const Device& to) {
  return from.index != to.index && from.index < 2 && to.index < 2;
}

std::vector<Context*>& ContextStack() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

Call::Call(Function function, Needs needs) : state_(TheState()) {
  if (state_.pid != getpid()) {  // no lock: a thread that is not there may hold it
    refused_ = CUDA_ERROR_NOT_INITIALIZED;
    return;
  }
  lock_ = Lock(state_.mutex);
  refused_ = Begin(function, needs);
}

CUresult Call::Begin(Function function, Needs needs) {
  const CUresult fault = state_.faults.Count(function);
  if (state_.ended) return CUDA_ERROR_DEINITIALIZED;
  if (InHostFunction()) return CUDA_ERROR_NOT_PERMITTED;
  if (fault != CUDA_SUCCESS) {
    const std::vector<Context*>& stack = ContextStack();
    if (IsSticky(fault) && !stack.empty()) {
      stack.back()->sticky = fault;
      state_.changed.notify_all();
    }
    return fault;
  }
  if (needs == Needs::kNothing) return CUDA_SUCCESS;
  if (!state_.initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (needs == Needs::kInit) return CUDA_SUCCESS;
  const std::vector<Context*>& stack = ContextStack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  context_ = stack.back();
  if (context_->retained == 0) return CUresult{709};  // CUDA_ERROR_CONTEXT_IS_DESTROYED
  if (context_->sticky != CUDA_SUCCESS) return context_->sticky;
  return CheckCapture(&state_, function);
}

}  // namespace kvxfer::testing::cuda_driver
