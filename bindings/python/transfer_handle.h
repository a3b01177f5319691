// A Transfer as Python holds it.
//
// Thread-safety: with the GIL.

#ifndef KVXFER_BINDINGS_PYTHON_TRANSFER_HANDLE_H_
#define KVXFER_BINDINGS_PYTHON_TRANSFER_HANDLE_H_

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "bindings/python/agent_handle.h"
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
  // Asks for its end as an event of the kind kWatchedEnd, with its id as the word. False: the agent
  // is being closed, which ends it, or is gone.
  bool Watch() const;
  // Null: the agent is gone.
  std::shared_ptr<AgentHandle> agent() const { return agent_.lock(); }

 private:
  // act(Duration) in turns until over(). Of an agent that is gone it can only be seen whether it
  // is.
  template <typename Act, typename Over>
  absl::Status InTurns(std::optional<double> timeout, Act act, Over over) const;

  std::weak_ptr<AgentHandle> agent_;
  Transfer transfer_;
};

// kvxfer.TransferEnd.
struct TransferEndHandle {
  uint64_t user_word = 0;
  TransferHandle transfer;
};

void BindTransfer(pybind11::module_& module);

}  // namespace kvxfer::python

#endif  // KVXFER_BINDINGS_PYTHON_TRANSFER_HANDLE_H_
