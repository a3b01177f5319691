// Takes the events of the backends, in turns, and passes each one to the user of its endpoint.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_ENGINE_BACKEND_POLLER_H_
#define KVXFER_AGENT_ENGINE_BACKEND_POLLER_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "absl/functional/function_ref.h"
#include "kvxfer/backend.h"
#include "src/agent/engine/progress_loop.h"
#include "src/agent/engine/runtime.h"

namespace kvxfer {

// Receives the connections that peers make. `backend`: its place in Runtime::backends.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  virtual void OnAccepted(size_t backend, std::unique_ptr<Endpoint> endpoint) = 0;
};

class BackendPoller {
 public:
  using Leaving = Driven::Leaving;

  // Both outlive the poller.
  BackendPoller(Runtime* runtime, Acceptor* acceptor) : runtime_(runtime), acceptor_(acceptor) {}

  // Polls each backend once, with what `input` says of it, and handles the events. Returns early if
  // the driver is leaving; the next call begins with the events that are left, and with the
  // backends that this one did not reach. True: there were events.
  bool PollAll(absl::FunctionRef<Input(size_t backend)> input, Leaving leaving);
  // Arms every backend. False: there is work that their wait descriptors would not show.
  bool Arm();

 private:
  bool Poll(size_t backend, Input input);
  bool DispatchAll(Leaving leaving);
  void Dispatch(Event& event);

  Runtime* const runtime_;
  Acceptor* const acceptor_;
  std::array<Event, 64> events_;  // the events of one Poll
  std::span<Event> undone_;       // the events in events_ that are not handled yet
  size_t undone_from_ = 0;        // the backend that reported them
  size_t next_ = 0;               // the backend that PollAll polls next
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_BACKEND_POLLER_H_
