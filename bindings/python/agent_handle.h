// An Agent as Python holds it: closed while other threads are inside of its calls, at the exit of
// the interpreter, or never (in a forked child); with the objects whose memory is registered.
//
// Thread-safety: with the GIL. No thread of kvxfer ever takes the GIL, so that an exit of the
// interpreter finds none that waits for it.

#ifndef KVXFER_BINDINGS_PYTHON_AGENT_HANDLE_H_
#define KVXFER_BINDINGS_PYTHON_AGENT_HANDLE_H_

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/end_queue.h"
#include "bindings/python/memory.h"
#include "bindings/python/status.h"
#include "bindings/python/wait.h"
#include "kvxfer/agent.h"

namespace kvxfer::python {

class AgentHandle {
 public:
  static std::shared_ptr<AgentHandle> Create(const AgentOptions& options);
  explicit AgentHandle(std::unique_ptr<Agent> agent);
  ~AgentHandle() { Close(); }
  AgentHandle(const AgentHandle&) = delete;
  AgentHandle& operator=(const AgentHandle&) = delete;

  // One call inside of the agent, which is not destroyed before that is over. Closed: it was
  // closed.
  class Use {
   public:
    explicit Use(AgentHandle& handle);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Agent& operator*() const { return *handle_.agent_; }
    Agent* operator->() const { return handle_.agent_.get(); }

   private:
    AgentHandle& handle_;
  };

  // act(Agent&), without the GIL.
  template <typename Act>
  auto Call(Act act) {
    const Use agent(*this);
    const pybind11::gil_scoped_release release;
    return act(*agent);
  }
  // act(Agent&, Duration) in turns without the GIL, until it says something else than
  // DeadlineExceeded, or `timeout` seconds (empty: forever) are over. Closed: it is closed
  // meanwhile.
  template <typename Act>
  auto CallInTurns(std::optional<double> timeout, Act act) {
    const Use agent(*this);
    auto said = WaitInTurns(
        timeout, [&](Duration turn) { return act(*agent, turn); }, [this] { return !closing_; });
    if (closing_) RefuseClosed();
    return said;
  }

  bool closed() const { return closing_; }
  const std::string& name() const { return name_; }

  std::pair<RegionId, MemorySpan> Register(pybind11::handle memory, Access access);
  void Deregister(RegionId region, double timeout);
  // InvalidArgument: the memory of a region was let go of while it was registered.
  void CheckMemory() const;

  // Pushes `key` once the agent is closed, at once where it is.
  void WatchClose(std::shared_ptr<EndQueue> queue, uint64_t key);

  // Waits for the calls inside, destroys the agent, lets go of the memory. Idempotent.
  void Close();
  // Of this process; for the exit of the interpreter.
  static void CloseAll();

 private:
  [[noreturn]] void RefuseClosed() const;

  const std::string name_;
  const pid_t owner_ = getpid();
  std::unique_ptr<Agent> agent_;
  std::map<RegionId, HeldMemory> held_{};
  std::vector<std::pair<std::shared_ptr<EndQueue>, uint64_t>> watchers_{};
  std::atomic<bool> closing_{false};
  std::atomic<int> inside_{0};
};

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_AGENT_HANDLE_H_
