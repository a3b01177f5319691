#include "bindings/python/values.h"

#include <pybind11/stl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "bindings/python/memory.h"
#include "bindings/python/status.h"
#include "bindings/python/text.h"
#include "bindings/python/wait.h"
#include "kvxfer/agent.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;

const char* NameOf(KvEventKind kind) {
  return kind == KvEventKind::kLeaseEnded ? "lease_ended" : "request_lost";
}

// Python has one name for either: they are strings there.
const std::string& NameIn(const KvEvent& event) {
  return event.kind == KvEventKind::kLeaseEnded ? event.lease.text : event.request.text;
}

const char* NameOf(KvLeaseEnd end) {
  switch (end) {
    case KvLeaseEnd::kConsumed:
      return "consumed";
    case KvLeaseEnd::kReleased:
      return "released";
    case KvLeaseEnd::kExpired:
      return "expired";
  }
  return "unknown";
}

const char* NameOf(Access access) {
  switch (access) {
    case Access::kNone:
      return "none";
    case Access::kRemoteRead:
      return "read";
    case Access::kRemoteWrite:
      return "write";
    case Access::kReadWrite:
      return "read_write";
  }
  return "unknown";
}

// A duration as seconds.
template <auto member>
struct Seconds;
template <typename Struct, Duration Struct::*member>
struct Seconds<member> {
  static double Get(const Struct& of) { return ToSeconds(of.*member); }
};

void BindNotification(py::module_& module) {
  py::class_<Notification>(module, "Notification",
                           "Delivered exactly once, after every byte of its transfer is visible.")
      .def_property_readonly("peer", &TextOf<&Notification::peer>::Get)
      .def_property_readonly("incarnation",
                             [](const Notification& n) { return n.incarnation.ToString(); })
      .def_readonly("transfer", &Notification::transfer)
      .def_property_readonly("payload", [](const Notification& n) { return py::bytes(n.payload); })
      .def_property_readonly("request", [](const Notification& n) { return Text(n.request.text); })
      .def_property_readonly("cache", [](const Notification& n) { return Text(n.cache.text); })
      .def("__repr__", [](const Notification& n) {
        return Text(absl::StrCat("<kvxfer.Notification of ", n.peer, ", ", n.payload.size(),
                                 " bytes", n.request.empty() ? "" : ", request ", n.request.text,
                                 ">"));
      });
}

void BindPeerValues(py::module_& module) {
  py::class_<PeerEvent>(module, "PeerEvent")
      .def_property_readonly("peer", &TextOf<&PeerEvent::peer>::Get)
      .def_property_readonly("incarnation",
                             [](const PeerEvent& e) { return e.incarnation.ToString(); })
      .def_property_readonly("kind", [](const PeerEvent& e) { return ToString(e.kind); })
      .def_property_readonly("cause", [](const PeerEvent& e) { return ToException(e.cause); })
      .def("__repr__", [](const PeerEvent& e) {
        return Text(absl::StrCat("<kvxfer.PeerEvent ", e.peer, " ", ToString(e.kind), ">"));
      });
  py::class_<PeerRegion>(module, "PeerRegion", "A region that a peer offers. Immutable.")
      .def_property_readonly("id", [](const PeerRegion& r) { return static_cast<uint32_t>(r.id); })
      .def_readonly("address", &PeerRegion::address)
      .def_readonly("bytes", &PeerRegion::bytes)
      .def_property_readonly("kind", [](const PeerRegion& r) { return python::NameOf(r.kind); })
      .def_readonly("device", &PeerRegion::device_id)
      .def_property_readonly("access", [](const PeerRegion& r) { return NameOf(r.access); })
      .def("__repr__", [](const PeerRegion& r) {
        return absl::StrCat("<kvxfer.PeerRegion ", static_cast<uint32_t>(r.id), ": ", r.bytes,
                            " bytes at ", r.address, ", ", NameOf(r.access), ">");
      });
  py::class_<RailExplanation>(module, "RailExplanation")
      .def_property_readonly("name", &TextOf<&RailExplanation::name>::Get)
      .def_readonly("up", &RailExplanation::up)
      .def_readonly("bytes_per_second", &RailExplanation::bytes_per_second)
      .def_property_readonly("round_trip", &Seconds<&RailExplanation::round_trip>::Get)
      .def_property_readonly("down_for", &Seconds<&RailExplanation::down_for>::Get)
      .def_property_readonly("why", &TextOf<&RailExplanation::why>::Get);
  py::class_<PathExplanation>(module, "PathExplanation")
      .def_property_readonly("backend", &TextOf<&PathExplanation::backend>::Get)
      .def_readonly("usable", &PathExplanation::usable)
      .def_readonly("chosen", &PathExplanation::chosen)
      .def_readonly("connected", &PathExplanation::connected)
      .def_readonly("rails", &PathExplanation::rails)
      .def_readonly("each_rail", &PathExplanation::each_rail)
      .def_readonly("bytes_per_second", &PathExplanation::bytes_per_second)
      .def_property_readonly("latency", &Seconds<&PathExplanation::latency>::Get)
      .def_property_readonly("why", &TextOf<&PathExplanation::why>::Get);
  py::class_<Explanation>(module, "Explanation", "str() of it is a few lines for a person.")
      .def_property_readonly("peer", &TextOf<&Explanation::peer>::Get)
      .def_property_readonly("incarnation",
                             [](const Explanation& e) { return e.incarnation.ToString(); })
      .def_property_readonly("host", &TextOf<&Explanation::host>::Get)
      .def_readonly("paths", &Explanation::paths)
      .def("__str__", [](const Explanation& e) { return Text(e.ToString()); });
  py::class_<QuiesceResult>(module, "QuiesceResult")
      .def_readonly("quiet", &QuiesceResult::quiet)
      .def_property_readonly("token",
                             [](const QuiesceResult& r) { return static_cast<uint64_t>(r.token); })
      .def_readonly("pending", &QuiesceResult::pending);
}

void BindKvValues(py::module_& module) {
  py::class_<PreparedBlocks>(module, "PreparedBlocks",
                             "Blocks of one request at both sides, for Agent.write_layers.");
  py::class_<KvEvent>(module, "KvEvent")
      .def_property_readonly("kind", [](const KvEvent& e) { return NameOf(e.kind); })
      .def_property_readonly("name", [](const KvEvent& e) { return Text(NameIn(e)); })
      .def_property_readonly("end", [](const KvEvent& e) { return NameOf(e.end); })
      .def_property_readonly("cache", [](const KvEvent& e) { return Text(e.cache.text); })
      .def_property_readonly("why", &TextOf<&KvEvent::why>::Get)
      .def("__repr__", [](const KvEvent& e) {
        return Text(absl::StrCat("<kvxfer.KvEvent ", NameOf(e.kind), ": ", NameIn(e), ">"));
      });
  py::class_<KvCounts>(module, "KvCounts", "Totals since the agent was created.")
      .def_readonly("requests_whole", &KvCounts::requests_whole)
      .def_readonly("requests_lost", &KvCounts::requests_lost)
      .def_readonly("leases_granted", &KvCounts::leases_granted)
      .def_readonly("leases_consumed", &KvCounts::leases_consumed)
      .def_readonly("leases_released", &KvCounts::leases_released)
      .def_readonly("leases_expired", &KvCounts::leases_expired)
      .def_readonly("fetches_refused", &KvCounts::fetches_refused)
      .def_readonly("reads_waiting", &KvCounts::reads_waiting);
}

}  // namespace

void BindValues(py::module_& module) {
  BindNotification(module);
  BindPeerValues(module);
  BindKvValues(module);
}

}  // namespace kvxfer::python
