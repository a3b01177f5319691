#include "bindings/python/transfer_handle.h"

#include <pybind11/stl.h>

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

const char* NameOf(TransferState state) {
  switch (state) {
    case TransferState::kActive:
      return "active";
    case TransferState::kDone:
      return "done";
    case TransferState::kFailed:
      return "failed";
    case TransferState::kCancelled:
      return "cancelled";
    case TransferState::kDeadlineExceeded:
      return "deadline_exceeded";
  }
  return "unknown";
}

const char* NameOf(Delivery delivery) {
  switch (delivery) {
    case Delivery::kNone:
      return "none";
    case Delivery::kPending:
      return "pending";
    case Delivery::kDelivered:
      return "delivered";
    case Delivery::kNotDelivered:
      return "not_delivered";
    case Delivery::kUnknown:
      return "unknown";
  }
  return "unknown";
}

}  // namespace

TransferHandle::TransferHandle(const std::shared_ptr<AgentHandle>& agent, Transfer transfer,
                               std::shared_ptr<ReadyFlag> ready)
    : agent_(agent), transfer_(std::move(transfer)) {
  watched_->ready = std::move(ready);
  if (watched_->ready != nullptr) Listen();
}

// One callback for whatever waits: a second would replace it.
void TransferHandle::Listen() {
  if (std::exchange(listens_, true)) return;
  const auto on_end = [watched = watched_](const Transfer&) {
    const std::lock_guard lock(watched->mu);
    watched->ended = true;
    for (const auto& [queue, key] : std::exchange(watched->queues, {})) queue->Push(key);
  };
  const auto agent = agent_.lock();
  if (agent == nullptr || agent->closed()) return on_end(transfer_);
  agent->Call([&](Agent&) { transfer_.OnEnd(on_end); });
}

void TransferHandle::Watch(std::shared_ptr<EndQueue> queue, uint64_t key) {
  Listen();
  const std::lock_guard lock(watched_->mu);
  // Without an agent no callback comes any more.
  if (watched_->ended || Ended()) return queue->Push(key);
  watched_->queues.emplace_back(std::move(queue), key);
}

bool TransferHandle::Ended() const { return transfer_.Poll() != TransferState::kActive; }

template <typename Act, typename Over>
absl::Status TransferHandle::InTurns(std::optional<double> timeout, Act act, Over over) const {
  if (const auto agent = agent_.lock(); agent != nullptr && !agent->closed()) {
    const AgentHandle::Use use(*agent);
    absl::Status said = WaitInTurns(timeout, act, [&] { return !over() && !agent->closed(); });
    if (!agent->closed()) return said;
  }
  // Whoever closes the agent ends it.
  return WaitInTurns(
      timeout,
      [&](Duration turn) {
        if (over()) return absl::OkStatus();
        std::this_thread::sleep_for(std::min<Duration>(turn, std::chrono::milliseconds(1)));
        return absl::DeadlineExceededError("still active");
      },
      [&] { return !over(); });
}

void TransferHandle::Wait(std::optional<double> timeout) const {
  (void)InTurns(
      timeout, [this](Duration turn) { return transfer_.Wait(turn); }, [this] { return Ended(); });
  // A time-out of the wait reads like the end by the deadline.
  if (Ended()) return Check(transfer_.status());
  throw StatusError(absl::DeadlineExceededError(absl::StrCat("transfer ", transfer_.id(), " to ",
                                                             transfer_.peer(), " is still active")),
                    "StillActive");
}

void TransferHandle::WaitQuiet(std::optional<double> timeout) const {
  const auto quiet = [this] { return Ended() && !transfer_.quarantined(); };
  absl::Status said = InTurns(
      timeout, [this](Duration turn) { return transfer_.WaitQuiet(turn); }, quiet);
  if (!quiet()) Check(std::move(said));
}

void TransferHandle::Cancel() const {
  const auto agent = agent_.lock();
  if (agent == nullptr || agent->closed()) return;  // has ended
  agent->Call([this](Agent&) { transfer_.Cancel(); });
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
      .def_readonly("path", &TransferStats::path)
      .def("__repr__", [](const TransferStats& s) {
        return absl::StrCat("TransferStats(bytes=", s.bytes, ", blocks=", s.blocks,
                            ", slices=", s.slices, ", queued=", ToSeconds(s.queued),
                            ", wire=", ToSeconds(s.wire), ", total=", ToSeconds(s.total),
                            ", path='", s.path, "')");
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
      .def_property_readonly("peer", [](const TransferHandle& t) { return t.transfer().peer(); })
      .def("_watch", &TransferHandle::Watch, py::arg("queue"), py::arg("key"))
      .def("__await__",
           [](const py::object& self) {
             return py::module_::import("kvxfer._aio").attr("wait")(self).attr("__await__")();
           })
      .def("__repr__", [](const TransferHandle& t) {
        return absl::StrCat("<kvxfer.Transfer ", t.transfer().id(), " to ", t.transfer().peer(),
                            ", ", NameOf(t.transfer().Poll()), ">");
      });
}

}  // namespace kvxfer::python
