#include "bindings/python/agent_handle.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

// By the GIL; never destroyed, for handles may go after static variables have.
std::vector<std::weak_ptr<AgentHandle>>& Handles() {
  static auto* const handles = new std::vector<std::weak_ptr<AgentHandle>>();
  return *handles;
}

}  // namespace

std::shared_ptr<AgentHandle> AgentHandle::Create(const AgentOptions& options) {
  auto agent = [&] {
    const py::gil_scoped_release release;
    return Agent::Create(options);
  }();
  auto handle = std::make_shared<AgentHandle>(Value(std::move(agent)));
  std::erase_if(Handles(), [](const auto& each) { return each.expired(); });
  Handles().push_back(handle);
  return handle;
}

AgentHandle::AgentHandle(std::unique_ptr<Agent> agent)
    : name_(agent->name()), agent_(std::move(agent)) {}

AgentHandle::Use::Use(AgentHandle& handle) : handle_(handle) {
  ++handle_.inside_;
  if (!handle_.closing_) return;
  --handle_.inside_;
  handle_.inside_.notify_all();
  handle_.RefuseClosed();
}

AgentHandle::Use::~Use() {
  --handle_.inside_;
  if (handle_.closing_) handle_.inside_.notify_all();
}

void AgentHandle::RefuseClosed() const {
  throw StatusError(absl::FailedPreconditionError(absl::StrCat("agent ", name_, " is closed")),
                    "Closed");
}

std::pair<RegionId, MemorySpan> AgentHandle::Register(py::handle memory, Access access) {
  HeldMemory held = HoldMemory(memory, "memory");
  const RegionId region =
      Value(Call([&](Agent& agent) { return agent.RegisterMemory(held.span, access); }));
  const MemorySpan span = held.span;
  held_.emplace(region, std::move(held));
  return {region, span};
}

void AgentHandle::Deregister(RegionId region, double timeout) {
  Check(CallInTurns(timeout, [region](Agent& agent, Duration turn) {
    return agent.DeregisterMemory(region, turn);
  }));
  held_.erase(region);
}

void AgentHandle::CheckMemory() const {
  for (const auto& [region, memory] : held_) {
    CheckStillThere(memory, static_cast<uint32_t>(region));
  }
}

void AgentHandle::WatchClose(std::shared_ptr<EndQueue> queue, uint64_t key) {
  if (closing_) return queue->Push(key);
  watchers_.emplace_back(std::move(queue), key);
}

void AgentHandle::Close() {
  const bool first = !closing_.exchange(true);
  for (const auto& [queue, key] : std::exchange(watchers_, {})) queue->Push(key);
  if (agent_ == nullptr) return;
  if (owner_ == getpid()) {
    const py::gil_scoped_release release;
    for (int inside = inside_; inside > 0; inside = inside_) inside_.wait(inside);
    if (first) agent_.reset();
  } else {
    agent_.reset();  // the parent's: nothing of it is touched
  }
  if (first) held_.clear();
}

void AgentHandle::CloseAll() {
  for (const auto& each : std::exchange(Handles(), {})) {
    if (const auto handle = each.lock()) handle->Close();
  }
}

}  // namespace kvxfer::python
