#include "src/agent/engine/backend_poller.h"

#include <utility>

namespace kvxfer {

bool BackendPoller::PollAll(absl::FunctionRef<Input(size_t)> input, Leaving leaving) {
  bool busy = !undone_.empty();
  busy |= runtime_->staging.Poll();
  // Events that the last driver left over.
  DispatchAll(Driven::Stays);
  const size_t count = runtime_->backends.size();
  for (size_t i = 0; i < count; ++i) {
    const size_t at = std::exchange(next_, (next_ + 1) % count);
    busy |= Poll(at, input(at));
    if (!DispatchAll(leaving)) return true;
  }
  return busy;
}

// Takes events from one backend. True: there were any.
bool BackendPoller::Poll(size_t backend, Input input) {
  undone_ = std::span(events_).first(runtime_->backends[backend]->Poll(events_, input));
  undone_from_ = backend;
  return !undone_.empty();
}

// False: the driver is leaving, and events are left.
bool BackendPoller::DispatchAll(Leaving leaving) {
  while (!undone_.empty()) {
    Event event = std::exchange(undone_.front(), Event());
    undone_ = undone_.subspan(1);
    Dispatch(event);
    if (!undone_.empty() && leaving()) return false;
  }
  return true;
}

void BackendPoller::Dispatch(Event& event) {
  if (event.kind == EventKind::kAccepted) {
    acceptor_->OnAccepted(undone_from_, std::move(event.accepted));
    return;
  }
  // An endpoint whose user has gone has no entry: its remaining events are dropped.
  const auto user = runtime_->users.find(event.endpoint);
  if (user != runtime_->users.end()) user->second->OnEvent(event);
}

bool BackendPoller::Arm() {
  bool armed = undone_.empty();
  for (const auto& backend : runtime_->backends) armed &= backend->Arm();
  return armed;
}

}  // namespace kvxfer
