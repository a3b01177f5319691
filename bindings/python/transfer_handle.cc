#include "bindings/python/transfer_handle.h"

#include <pybind11/stl.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "bindings/python/stream.h"
#include "bindings/python/text.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

// What the library calls it, as one word.
template <typename Kind>
std::string NameOf(Kind kind) {
  return absl::StrReplaceAll(ToString(kind), {{" ", "_"}});
}

}  // namespace

TransferHandle::TransferHandle(const std::shared_ptr<AgentHandle>& agent, Transfer transfer,
                               std::shared_ptr<ReadyFlag> ready, py::object event)
    : agent_(agent), transfer_(std::move(transfer)) {
  if (event) agent->KeepUntilEnd(transfer_, std::move(event));
  if (ready == nullptr) return;
  // The engine reads it until the end, or until the agent is destroyed.
  const AgentHandle::Use inside(*agent);
  if (!inside) {
    agent->Keep(std::move(ready));
    return;
  }
  const WithoutGil without;
  transfer_.OnEnd([ready = std::move(ready)](const Transfer&) {});
}

bool TransferHandle::Watch() const {
  const auto agent = agent_.lock();
  if (agent == nullptr) return false;
  absl::Status watched;
  {
    const AgentHandle::Use inside(*agent);
    if (!inside) return false;
    const WithoutGil without;
    watched = transfer_.Watch(transfer_.id());
  }
  Check(std::move(watched));
  return true;
}

bool TransferHandle::Ended() const { return transfer_.Poll() != TransferState::kActive; }

template <typename Act, typename Over>
absl::Status TransferHandle::InTurns(std::optional<double> timeout, Act act, Over over) const {
  const auto turn = [&](Duration duration) -> absl::Status {
    if (over()) return absl::OkStatus();
    const auto agent = agent_.lock();
    if (agent != nullptr) {
      const AgentHandle::Use inside(*agent);
      const WithoutGil without;
      if (inside) return act(duration);
    }
    if (agent == nullptr || agent->destroyed()) {
      return absl::FailedPreconditionError(
          absl::StrCat("transfer ", transfer_.id(), ": its agent is closed, and knows no more"));
    }
    const WithoutGil without;
    std::this_thread::sleep_for(std::min<Duration>(duration, std::chrono::milliseconds(1)));
    return absl::Status(kTimedOut, "its agent is being closed");
  };
  return WaitInTurns(timeout, turn, [&] { return !over(); });
}

void TransferHandle::Wait(std::optional<double> timeout) const {
  absl::Status said = InTurns(
      timeout, [this](Duration turn) { return transfer_.Wait(turn); }, [this] { return Ended(); });
  if (Ended()) return Check(transfer_.status());
  if (!IsTimedOut(said)) return Check(std::move(said));
  throw StatusError(std::move(said), "StillActive");
}

bool TransferHandle::Drive(double seconds) const {
  if (Ended()) return true;
  const auto agent = agent_.lock();
  if (agent == nullptr) return Ended();
  const AgentHandle::Use inside(*agent);
  if (!inside) return Ended();
  const WithoutGil without;
  (void)transfer_.Wait(std::min<Duration>(ToDuration(seconds, "seconds"), kTurn));
  return Ended();
}

void TransferHandle::WaitQuiet(std::optional<double> timeout) const {
  const auto quiet = [this] { return Ended() && !transfer_.quarantined(); };
  absl::Status said = InTurns(
      timeout, [this](Duration turn) { return transfer_.WaitQuiet(turn); }, quiet);
  if (!quiet()) Check(std::move(said));
}

void TransferHandle::Cancel() const {
  const auto agent = agent_.lock();
  if (agent == nullptr) return;  // has ended
  const AgentHandle::Use inside(*agent);
  const WithoutGil without;
  if (inside) transfer_.Cancel();
}

void TransferHandle::StreamWait(py::handle stream) const {
  const auto known = ToStream(stream, "stream");
  if (!known.has_value()) throw py::type_error("stream is None; expected a CUDA stream");
  if (Ended()) return;
  if (const auto agent = agent_.lock()) {
    const AgentHandle::Use inside(*agent);
    if (inside) {
      absl::Status said;
      {
        const WithoutGil without;
        said = transfer_.StreamWait(*known);
      }
      return Check(std::move(said));
    }
  }
  if (Ended()) return;
  throw StatusError(absl::FailedPreconditionError(
                        absl::StrCat("transfer ", transfer_.id(), ": its agent is being closed")),
                    "Closed");
}

void BindTransfer(py::module_& module) {
  py::class_<ReadyFlag, std::shared_ptr<ReadyFlag>>(
      module, "ReadyFlag",
      "A transfer posted with ready=flag sends nothing before flag.set(). One flag may hold back "
      "several; it lives as long as they do.")
      .def(py::init<>())
      .def("set", [](ReadyFlag& flag) { flag.value.store(1, std::memory_order_release); })
      .def("is_set", [](const ReadyFlag& flag) { return flag.value.load() != 0; });

  py::class_<TransferStats>(module, "TransferStats", "Durations in seconds.")
      .def_readonly("bytes", &TransferStats::bytes)
      .def_readonly("blocks", &TransferStats::blocks)
      .def_readonly("slices", &TransferStats::slices)
      .def_property_readonly("queued", [](const TransferStats& s) { return ToSeconds(s.queued); })
      .def_property_readonly("wire", [](const TransferStats& s) { return ToSeconds(s.wire); })
      .def_property_readonly("total", [](const TransferStats& s) { return ToSeconds(s.total); })
      .def_property_readonly("path", &TextOf<&TransferStats::path>::Get)
      .def("__repr__", [](const TransferStats& s) {
        return Text(absl::StrCat("TransferStats(bytes=", s.bytes, ", blocks=", s.blocks,
                                 ", slices=", s.slices, ", queued=", ToSeconds(s.queued),
                                 ", wire=", ToSeconds(s.wire), ", total=", ToSeconds(s.total),
                                 ", path='", s.path, "')"));
      });

  py::class_<TransferHandle>(module, "Transfer",
                             "One write or read of many blocks, from its posting to its one end: "
                             "await it, wait for it, or ask done(). Any thread; may outlive its "
                             "agent.")
      .def("wait", &TransferHandle::Wait, py::arg("timeout") = py::none(),
           "Blocks until the end, at most `timeout` seconds. Raises StillActive where the time-out "
           "passed; else the transfer's own end.")
      .def("wait_quiet", &TransferHandle::WaitQuiet, py::arg("timeout") = py::none(),
           "Blocks until it has ended and no byte of it can land any more.")
      .def("cancel", &TransferHandle::Cancel)
      .def("stream_wait", &TransferHandle::StreamWait, py::arg("stream"),
           "What is put into that CUDA stream from now on begins after the end. No thread waits.")
      .def("done", &TransferHandle::Ended)
      .def_property_readonly("state",
                             [](const TransferHandle& t) { return NameOf(t.transfer().Poll()); })
      .def_property_readonly(
          "error", [](const TransferHandle& t) { return ToException(t.transfer().status()); })
      .def_property_readonly("quarantined",
                             [](const TransferHandle& t) { return t.transfer().quarantined(); })
      .def_property_readonly(
          "delivery", [](const TransferHandle& t) { return NameOf(t.transfer().delivery()); })
      .def_property_readonly("stats", [](const TransferHandle& t) { return t.transfer().stats(); })
      .def_property_readonly("id", [](const TransferHandle& t) { return t.transfer().id(); })
      .def_property_readonly("peer",
                             [](const TransferHandle& t) { return Text(t.transfer().peer()); })
      .def("_watch", &TransferHandle::Watch)
      .def_property_readonly("_agent", &TransferHandle::agent)
      .def("_drive", &TransferHandle::Drive, py::arg("seconds"))
      .def("__await__",
           [](const py::object& self) {
             return py::module_::import("kvxfer._aio").attr("wait")(self).attr("__await__")();
           })
      .def("__repr__", [](const TransferHandle& t) {
        return Text(absl::StrCat("<kvxfer.Transfer ", t.transfer().id(), " to ",
                                 t.transfer().peer(), ", ", NameOf(t.transfer().Poll()), ">"));
      });

  py::class_<TransferEndHandle>(module, "TransferEnd",
                                "The end of a transfer that was posted with a user_word.")
      .def_readonly("user_word", &TransferEndHandle::user_word)
      .def_readonly("transfer", &TransferEndHandle::transfer)
      .def("__repr__", [](const TransferEndHandle& e) {
        return absl::StrCat("<kvxfer.TransferEnd of transfer ", e.transfer.transfer().id(),
                            ", user_word ", e.user_word, ">");
      });
}

}  // namespace kvxfer::python
