// A Transfer as Python holds it, and what waits for its end.
//
// Thread-safety: with the GIL, but for Watch, which has a lock of its own.

#ifndef KVXFER_BINDINGS_PYTHON_TRANSFER_HANDLE_H_
#define KVXFER_BINDINGS_PYTHON_TRANSFER_HANDLE_H_

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "bindings/python/agent_handle.h"
#include "bindings/python/end_queue.h"
#include "kvxfer/transfer.h"

namespace kvxfer::python {

// What holds transfers back until it is set.
struct ReadyFlag {
  std::atomic<uint32_t> value{0};
};

class TransferHandle {
 public:
  // Keeps `ready`, and `event`, an object or null, until the end.
  TransferHandle(const std::shared_ptr<AgentHandle>& agent, Transfer transfer,
                 std::shared_ptr<ReadyFlag> ready, pybind11::object event);

  const Transfer& transfer() const { return transfer_; }
  bool Ended() const;
  // Blocks until the end, or `timeout` seconds; the end's error, StillActive, is thrown.
  void Wait(std::optional<double> timeout) const;
  void WaitQuiet(std::optional<double> timeout) const;
  void Cancel() const;
  // What is put into `stream` from now on begins after the end.
  void StreamWait(pybind11::handle stream) const;
  // Makes progress for at most so many seconds, without the GIL; whether it has ended. For those
  // who ask again and again.
  bool Drive(double seconds) const;
  // Pushes `key` once it has ended, at once where it has.
  void Watch(const std::shared_ptr<EndQueue>& queue, uint64_t key);

 private:
  // Shared with the callback that runs at the end, whichever is the last.
  struct Watched {
    std::mutex mu;
    bool ended = false;                                                  // by mu
    std::vector<std::pair<std::shared_ptr<EndQueue>, uint64_t>> queues;  // by mu
    std::shared_ptr<ReadyFlag> ready;  // the engine reads it until then
  };
  // False: the agent is being closed, which will end it.
  bool Listen();
  // act(Duration) in turns until over(). Of an agent that is gone it can only be seen whether it
  // is.
  template <typename Act, typename Over>
  absl::Status InTurns(std::optional<double> timeout, Act act, Over over) const;

  std::weak_ptr<AgentHandle> agent_;
  Transfer transfer_;
  std::shared_ptr<Watched> watched_ = std::make_shared<Watched>();
  bool listens_ = false;
};

void BindTransfer(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_TRANSFER_HANDLE_H_
