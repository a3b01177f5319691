#include "bindings/python/agent_handle.h"

#include <algorithm>
#include <iterator>
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

// By the GIL: no agent is made any more.
bool& Exiting() {
  static bool exiting = false;
  return exiting;
}

}  // namespace

std::shared_ptr<AgentHandle> AgentHandle::Create(const AgentOptions& options) {
  if (Exiting()) {
    throw StatusError(absl::FailedPreconditionError("the interpreter exits"), "Closed");
  }
  auto agent = [&] {
    const WithoutGil without;
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
  inside_ = !handle_.closing_;
  if (inside_) return;
  --handle_.inside_;
  handle_.inside_.notify_all();
}

AgentHandle::Use::~Use() {
  if (!inside_) return;
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
  // Its end may run code of Python, which finds the map without it.
  const auto gone = held_.extract(region);
}

std::vector<RegionId> AgentHandle::RegisterRaw(std::span<const MemorySpan> spans, Access access) {
  return Value(Call([&](Agent& agent) { return agent.RegisterMemory(spans, access); }));
}

std::pair<std::vector<RegionId>, absl::Status> AgentHandle::DeregisterRaw(
    std::vector<RegionId> regions, double timeout) {
  absl::Status status = CallInTurns(timeout, [&regions](Agent& agent, Duration turn) {
    std::vector<RegionId> in_use;
    absl::Status said = agent.DeregisterMemory(regions, turn, &in_use);
    if (IsTimedOut(said)) regions = std::move(in_use);
    return said;
  });
  if (status.ok()) return {};
  if (!IsTimedOut(status)) Check(status);
  return {std::move(regions), std::move(status)};
}

void AgentHandle::CheckMemory() const {
  // To ask a tensor is to run code of Python, which may change the map.
  std::vector<std::pair<uint32_t, HeldMemory>> asked;
  for (const auto& [region, memory] : held_) {
    if (memory.may_move) asked.emplace_back(static_cast<uint32_t>(region), memory);
  }
  for (const auto& [region, memory] : asked) CheckStillThere(memory, region);
}

void AgentHandle::Keep(std::shared_ptr<void> thing) {
  if (!destroyed_) kept_.push_back(std::move(thing));
}

void AgentHandle::KeepUntilEnd(Transfer transfer, py::object thing) {
  if (destroyed_) return;
  // Their ends may run code of Python, which finds the list without them.
  std::vector<std::pair<Transfer, py::object>> ended;
  if (until_end_.size() >= sweep_at_) {
    const auto active = [](const auto& each) {
      return each.first.Poll() == TransferState::kActive;
    };
    const auto first = std::partition(until_end_.begin(), until_end_.end(), active);
    ended.assign(std::make_move_iterator(first), std::make_move_iterator(until_end_.end()));
    until_end_.erase(first, until_end_.end());
    sweep_at_ = std::max(kSweep, 2 * until_end_.size());
  }
  until_end_.emplace_back(std::move(transfer), std::move(thing));
}

void AgentHandle::Close() {
  const bool first = !closing_.exchange(true);
  if (owner_ != getpid()) {
    if (first) agent_.reset();  // the parent's: nothing of it is touched
    destroyed_ = true;
  } else if (!destroyed_) {
    const WithoutGil without;
    if (first) {
      for (int inside = inside_; inside > 0; inside = inside_) inside_.wait(inside);
      agent_.reset();
      destroyed_ = true;
      destroyed_.notify_all();
    } else {
      destroyed_.wait(false);
    }
  }
  // Their ends may run code of Python, which finds the agent without them.
  const auto kept = std::exchange(kept_, {});
  const auto until_end = std::exchange(until_end_, {});
  const auto held = std::exchange(held_, {});
}

void AgentHandle::CloseAll() {
  Exiting() = true;
  for (const auto& each : std::exchange(Handles(), {})) {
    if (const auto handle = each.lock()) handle->Close();
  }
}

}  // namespace kvxfer::python
