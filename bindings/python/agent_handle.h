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

  // One call inside of the agent, which is not destroyed before that is over. No code of Python
  // runs meanwhile: it might close the agent, and wait for itself.
  class Use {
   public:
    explicit Use(AgentHandle& handle);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    // False: the agent is being closed, or was.
    explicit operator bool() const { return inside_; }
    Agent& operator*() const { return *handle_.agent_; }

   private:
    AgentHandle& handle_;
    bool inside_ = false;
  };

  // act(Agent&), without the GIL. Closed: it is closed.
  template <typename Act>
  auto Call(Act act) {
    const Use agent(*this);
    if (!agent) RefuseClosed();
    const WithoutGil without;
    return act(*agent);
  }
  // act(Agent&, Duration) in turns without the GIL, until it says something else than kTimedOut, or
  // `timeout` seconds (empty: forever) are over. Closed: it is closed meanwhile.
  template <typename Act>
  auto CallInTurns(std::optional<double> timeout, Act act) {
    return WaitInTurns(
        timeout,
        [&](Duration turn) { return Call([&](Agent& agent) { return act(agent, turn); }); },
        [] { return true; });
  }

  bool closed() const { return closing_; }
  // Every transfer has ended.
  bool destroyed() const { return destroyed_; }
  const std::string& name() const { return name_; }

  std::pair<RegionId, MemorySpan> Register(pybind11::handle memory, Access access);
  void Deregister(RegionId region, double timeout);
  // Many at once, of memory that nothing of Python holds.
  std::vector<RegionId> RegisterRaw(std::span<const MemorySpan> spans, Access access);
  // Those that are still in use after `timeout` seconds, and why; the others are gone.
  std::pair<std::vector<RegionId>, absl::Status> DeregisterRaw(std::vector<RegionId> regions,
                                                               double timeout);
  // InvalidArgument: the memory of a region was let go of while it was registered.
  void CheckMemory() const;

  // Keeps it until then.
  void Keep(std::shared_ptr<void> thing);
  // Keeps it until `transfer` has ended, or for a while longer.
  void KeepUntilEnd(Transfer transfer, pybind11::object thing);

  // Waits for the calls inside, destroys the agent, lets go of the memory. Idempotent: whoever
  // comes second waits too.
  void Close();
  // Of this process; for the exit of the interpreter.
  static void CloseAll();

 private:
  static constexpr size_t kSweep = 16;

  [[noreturn]] void RefuseClosed() const;

  const std::string name_;
  const pid_t owner_ = getpid();
  std::unique_ptr<Agent> agent_;
  std::map<RegionId, HeldMemory> held_{};
  std::vector<std::shared_ptr<void>> kept_{};
  std::vector<std::pair<Transfer, pybind11::object>> until_end_{};
  size_t sweep_at_ = kSweep;  // so many of those, the ended ones are let go of
  std::atomic<bool> closing_{false};
  std::atomic<bool> destroyed_{false};
  std::atomic<int> inside_{0};
};

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_AGENT_HANDLE_H_
