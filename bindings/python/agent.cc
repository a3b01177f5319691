// kvxfer.Agent: memory, peers, transfers, notifications. KV caches are in agent_kv.cc.
#include "bindings/python/agent.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "bindings/python/descriptor_list.h"
#include "bindings/python/integers.h"
#include "bindings/python/options.h"
#include "bindings/python/stream.h"
#include "bindings/python/text.h"
#include "bindings/python/values.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;
using Handle = std::shared_ptr<AgentHandle>;

Access ToAccess(const std::string& access) {
  if (access == "none") return Access::kNone;
  if (access == "read") return Access::kRemoteRead;
  if (access == "write") return Access::kRemoteWrite;
  if (access == "read_write") return Access::kReadWrite;
  Refuse(absl::StrCat("access is \"", access,
                      "\"; expected \"none\", \"read\", \"write\" or \"read_write\""));
}

// What the caller of register_memory gets.
struct Region {
  std::weak_ptr<AgentHandle> agent;
  RegionId id = RegionId::kNone;
  MemorySpan span{};
};

Region RegisterMemory(const Handle& agent, const py::object& memory, const std::string& access) {
  const auto [id, span] = agent->Register(memory, ToAccess(access));
  return {agent, id, span};
}

constexpr char kRegionRows[] = "an array (N, 3) of int64 or uint64: address, bytes, device";

std::vector<uint32_t> RegisterRows(const Handle& agent, const py::object& array,
                                   const std::string& kind) {
  const Rows rows = ToRows(array, "rows", kRegionRows);
  if (rows.columns != 3) Refuse(absl::StrCat("rows are not ", kRegionRows));
  const MemoryKind memory = ToMemoryKind(kind);
  std::vector<MemorySpan> spans(rows.count);
  for (size_t i = 0; i < rows.count; ++i) {
    // For host memory the device is a label of the caller's.
    const auto device = memory == MemoryKind::kHost ? 0 : rows.at(i, 2);
    if (device > INT_MAX) Refuse(absl::StrCat("device ", device, " is none"));
    spans[i] = {.data = reinterpret_cast<void*>(rows.at(i, 0)),
                .bytes = rows.at(i, 1),
                .kind = memory,
                .device_id = static_cast<int>(device)};
  }
  std::vector<uint32_t> ids;
  for (const RegionId id : agent->RegisterRaw(spans, Access::kReadWrite)) {
    ids.push_back(static_cast<uint32_t>(id));
  }
  return ids;
}

std::pair<std::vector<uint32_t>, std::string> DeregisterIds(const Handle& agent,
                                                            const std::vector<uint32_t>& ids,
                                                            double timeout) {
  std::vector<RegionId> regions(ids.size());
  std::ranges::transform(ids, regions.begin(), [](uint32_t id) { return RegionId{id}; });
  const auto [in_use, why] = agent->DeregisterRaw(std::move(regions), timeout);
  std::vector<uint32_t> left(in_use.size());
  std::ranges::transform(in_use, left.begin(),
                         [](RegionId id) { return static_cast<uint32_t>(id); });
  return {std::move(left), std::string(why.message())};
}

// Of this agent: numbers of another one mean other memory here.
RegionId ToRegion(const Handle& agent, py::handle region) {
  if (py::isinstance<Region>(region)) {
    const auto& known = region.cast<const Region&>();
    if (known.agent.lock() == agent) return known.id;
    Refuse(absl::StrCat("region ", static_cast<uint32_t>(known.id),
                        " is of another agent; expected one of ", agent->name()));
  }
  if (PyLong_Check(region.ptr()) == 0) {
    throw py::type_error(absl::StrCat("region is a ", Py_TYPE(region.ptr())->tp_name,
                                      "; expected a Region, or its id"));
  }
  int overflow = 0;
  const int64_t id = PyLong_AsLongLongAndOverflow(region.ptr(), &overflow);
  if (overflow != 0 || id < 0 || id > UINT32_MAX) {
    Refuse(absl::StrCat("region is ", std::string(py::str(region)), "; expected the id of one"));
  }
  return static_cast<RegionId>(id);
}

TransferOptions ToTransferOptions(const py::object& notification, const std::string& order,
                                  double deadline, int priority, std::string backend,
                                  const ReadyFlag* ready, const StreamOrder& after,
                                  std::optional<uint64_t> user_word) {
  TransferOptions options;
  options.notification = ToPayload(notification, "notification");
  if (order == "any") {
    options.order = NotifyOrder::kAnyOrder;
  } else if (order != "posted") {
    Refuse(absl::StrCat("order is \"", order, "\"; expected \"posted\" or \"any\""));
  }
  options.deadline = ToDuration(deadline, "deadline");
  options.priority = priority;
  options.backend = std::move(backend);
  if (ready != nullptr) options.ready = &ready->value;
  options.after = after.stream;
  options.after_event = after.event;
  options.user_word = user_word;
  return options;
}

std::vector<PagedRegion> ToPagedRegions(py::handle regions, const char* name) {
  if (py::isinstance<PagedRegion>(regions)) return {regions.cast<PagedRegion>()};
  try {
    return regions.cast<std::vector<PagedRegion>>();
  } catch (const py::cast_error&) {
    throw py::type_error(absl::StrCat(name, " is a ", Py_TYPE(regions.ptr())->tp_name,
                                      "; expected a PagedRegion or a list of them, for ids"));
  }
}

enum class Direction : uint8_t { kWrite, kRead };

template <typename Blocks>
absl::StatusOr<Transfer> Post(const Handle& handle, Direction direction, const std::string& peer,
                              const Blocks& blocks, const TransferOptions& options) {
  return handle->Call([&](Agent& agent) {
    return direction == Direction::kWrite ? agent.Write(peer, blocks, options)
                                          : agent.Read(peer, blocks, options);
  });
}

template <Direction direction>
TransferHandle Move(const Handle& agent, const std::string& peer, const py::object& local,
                    const py::object& remote, const py::object& local_ids,
                    const py::object& remote_ids, const py::object& notification,
                    const std::string& order, double deadline, int priority,
                    const std::string& backend, const std::shared_ptr<ReadyFlag>& ready,
                    const py::object& stream, const py::object& event,
                    std::optional<uint64_t> user_word) {
  agent->CheckMemory();
  const StreamOrder after = ToStreamOrder(stream, event);
  const TransferOptions options = ToTransferOptions(notification, order, deadline, priority,
                                                    backend, ready.get(), after, user_word);
  if (local_ids.is_none() != remote_ids.is_none()) {
    Refuse("one of local_ids and remote_ids is given; expected both, or neither");
  }
  if (local_ids.is_none()) {
    const auto ours = ToDescriptors(local, "local");
    const auto theirs = ToDescriptors(remote, "remote");
    return {agent, Value(Post(agent, direction, peer, DescriptorBlocks{*ours, *theirs}, options)),
            ready, after.event_object};
  }
  const auto ours = ToPagedRegions(local, "local");
  const auto theirs = ToPagedRegions(remote, "remote");
  const Ids our_ids(local_ids, "local_ids", Ids::Where::kAnywhere);
  const Ids their_ids(remote_ids, "remote_ids", Ids::Where::kAnywhere);
  const PagedBlocks blocks{
      ours, theirs, our_ids.span(), their_ids.span(), our_ids.on_gpu(), their_ids.on_gpu()};
  // A GPU reads ids that are there while it copies.
  const bool on_gpu = our_ids.on_gpu().address != 0 || their_ids.on_gpu().address != 0;
  py::object kept = after.event_object;
  if (on_gpu) kept = py::make_tuple(kept ? kept : py::none(), local_ids, remote_ids);
  return {agent, Value(Post(agent, direction, peer, blocks, options)), ready, std::move(kept)};
}

TransferHandle Notify(const Handle& agent, const std::string& peer, const py::object& payload,
                      const std::string& order, double deadline, const py::object& stream,
                      const py::object& event, std::optional<uint64_t> user_word) {
  const StreamOrder after = ToStreamOrder(stream, event);
  TransferOptions options =
      ToTransferOptions(payload, order, deadline, 0, "", nullptr, after, user_word);
  if (!options.notification.has_value()) throw py::type_error("payload is None; expected bytes");
  return {agent, Value(agent->Call([&](Agent& inside) {
            return inside.Notify(peer, *std::move(options.notification), options);
          })),
          nullptr, after.event_object};
}

std::vector<Notification> PollNotifications(const Handle& agent, size_t limit) {
  return agent->Call([limit](Agent& inside) {
    std::vector<Notification> all;
    while (all.size() < limit) {
      auto next = inside.PollNotification();
      if (!next.has_value()) break;
      all.push_back(*std::move(next));
    }
    return all;
  });
}

Notification WaitNotification(const Handle& agent, std::optional<double> timeout) {
  return Value(agent->CallInTurns(
      timeout, [](Agent& inside, Duration turn) { return inside.WaitNotification(turn); }));
}

constexpr std::pair<const char*, AgentEventKinds> kEventKinds[] = {
    {"notification", AgentEventKinds::kNotification},
    {"transfer_end", AgentEventKinds::kTransferEnd},
    {"peer", AgentEventKinds::kPeer},
    {"kv", AgentEventKinds::kKv}};

AgentEventKinds ToEventKinds(const std::optional<std::vector<std::string>>& names) {
  if (!names.has_value()) return AgentEventKinds::kAll;
  AgentEventKinds kinds = AgentEventKinds::kNone;
  for (const std::string& name : *names) {
    const auto* const known =
        std::ranges::find_if(kEventKinds, [&name](const auto& kind) { return name == kind.first; });
    if (known == std::end(kEventKinds)) {
      Refuse(absl::StrCat("kinds has \"", name,
                          "\"; expected \"notification\", \"transfer_end\", \"peer\" or \"kv\""));
    }
    kinds = kinds | known->second;
  }
  if (kinds == AgentEventKinds::kNone) Refuse("kinds is empty; expected one kind of event or more");
  return kinds;
}

py::list ToEvents(const Handle& agent, std::vector<AgentEvent> events) {
  py::list list;
  for (AgentEvent& event : events) {
    std::visit(
        [&](auto&& one) {
          using Event = std::decay_t<decltype(one)>;
          if constexpr (std::is_same_v<Event, TransferEnd>) {
            list.append(TransferEndHandle{
                .user_word = one.user_word,
                .transfer = TransferHandle(agent, std::move(one.transfer), nullptr, {})});
          } else if constexpr (!std::is_same_v<Event, std::monostate>) {
            list.append(std::forward<decltype(one)>(one));
          }
        },
        std::move(event));
  }
  return list;
}

// Adds to `all` what is there, so that it has at most `limit`.
void TakeEvents(Agent& agent, AgentEventKinds kinds, size_t limit, std::vector<AgentEvent>& all) {
  std::array<AgentEvent, 64> some;
  while (all.size() < limit) {
    const auto room = std::span(some).first(std::min(some.size(), limit - all.size()));
    const size_t count = agent.PollEvents(room, kinds);
    std::move(some.begin(), some.begin() + static_cast<ptrdiff_t>(count), std::back_inserter(all));
    if (count < room.size()) return;
  }
}

py::list PollEvents(const Handle& agent, const std::optional<std::vector<std::string>>& names,
                    size_t limit) {
  const AgentEventKinds kinds = ToEventKinds(names);
  std::vector<AgentEvent> all;
  agent->Call([&](Agent& inside) { TakeEvents(inside, kinds, limit, all); });
  return ToEvents(agent, std::move(all));
}

py::list WaitEvents(const Handle& agent, std::optional<double> timeout,
                    const std::optional<std::vector<std::string>>& names, size_t limit) {
  const AgentEventKinds kinds = ToEventKinds(names);
  if (limit == 0) Refuse("limit is 0; expected 1 or more");
  std::vector<AgentEvent> all(1);
  Check(agent->CallInTurns(timeout, [&](Agent& inside, Duration turn) {
    absl::Status waited = inside.WaitEvents(all, turn, kinds).status();
    if (waited.ok()) TakeEvents(inside, kinds, limit, all);
    return waited;
  }));
  return ToEvents(agent, std::move(all));
}

// The words of the ends that TransferHandle::Watch asked for.
std::vector<uint64_t> TakeWatched(const Handle& agent) {
  std::vector<AgentEvent> all;
  agent->Call([&](Agent& inside) {
    TakeEvents(inside, AgentEventKinds::kWatchedEnd, kMaxUnreadEnds, all);
  });
  std::vector<uint64_t> words;
  words.reserve(all.size());
  for (const AgentEvent& event : all) words.push_back(std::get<TransferEnd>(event).user_word);
  return words;
}

// One question, asked once: a second one would leave a second token.
QuiesceResult Quiesce(const Handle& agent, const std::string& peer,
                      const std::vector<py::object>& regions, double timeout) {
  QuiesceScope scope{.peer = peer};
  for (const py::object& region : regions) scope.regions.push_back(ToRegion(agent, region));
  const Duration first = std::min(ToDuration(timeout, "timeout"), kTurn);
  auto result = Value(agent->Call([&](Agent& inside) { return inside.Quiesce(scope, first); }));
  if (result.quiet) return result;
  const auto look = [&](Agent& inside, Duration turn) -> absl::Status {
    const auto until = std::chrono::steady_clock::now() + turn;
    do {
      const auto quiet = inside.IsQuiet(result.token);
      if (!quiet.ok()) return quiet.status();
      if (*quiet) return absl::OkStatus();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } while (std::chrono::steady_clock::now() < until);
    return absl::Status(kTimedOut, "");
  };
  absl::Status said = agent->CallInTurns(timeout - ToSeconds(first), look);
  if (said.ok()) return {.quiet = true};
  if (!IsTimedOut(said)) Check(std::move(said));
  return result;
}

// Closed however it ends, by Ctrl-C too: there is nothing to do with an agent that takes no work.
void Drain(const Handle& agent, double deadline) {
  absl::Status drained;
  try {
    drained = agent->CallInTurns(deadline,
                                 [](Agent& inside, Duration turn) { return inside.Drain(turn); });
  } catch (...) {
    agent->Close();
    throw;
  }
  agent->Close();
  Check(std::move(drained));
}

void BindRegion(py::module_& module) {
  py::class_<Region>(module, "Region",
                     "Registered memory. As a context manager it is deregistered at the end.")
      .def_property_readonly("id", [](const Region& r) { return static_cast<uint32_t>(r.id); })
      .def_property_readonly(
          "address", [](const Region& r) { return reinterpret_cast<uint64_t>(r.span.data); })
      .def_property_readonly("bytes", [](const Region& r) { return r.span.bytes; })
      .def_property_readonly("kind", [](const Region& r) { return NameOf(r.span.kind); })
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__",
           [](const Region& region, const py::args&) {
             const auto agent = region.agent.lock();
             if (agent != nullptr && !agent->closed()) agent->Deregister(region.id, 5.0);
           })
      .def("__repr__", [](const Region& r) {
        return absl::StrCat("<kvxfer.Region ", static_cast<uint32_t>(r.id), ": ", r.span.bytes,
                            " bytes at ", reinterpret_cast<uint64_t>(r.span.data), ">");
      });
}

template <Direction direction>
void BindMove(AgentClass& agent, const char* name, const char* doc) {
  agent.def(name, &Move<direction>, py::arg("peer"), py::arg("local"), py::arg("remote"),
            py::arg("local_ids") = py::none(), py::arg("remote_ids") = py::none(), py::kw_only(),
            py::arg("notification") = py::none(), py::arg("order") = "posted",
            py::arg("deadline") = 30.0, py::arg("priority") = 0, py::arg("backend") = "",
            py::arg("ready") = py::none(), py::arg("stream") = py::none(),
            py::arg("event") = py::none(), py::arg("user_word") = py::none(), doc);
}

void BindMemoryAndPeers(AgentClass& agent) {
  agent
      .def("register_memory", &RegisterMemory, py::arg("memory"), py::arg("access") = "read_write",
           "Registers memory, which is kept alive until it is deregistered or the agent closed. "
           "Peers learn of it by metadata() taken afterwards.")
      .def(
          "deregister_memory",
          [](const Handle& self, const py::object& region, double timeout) {
            self->Deregister(ToRegion(self, region), timeout);
          },
          py::arg("region"), py::arg("timeout") = 5.0,
          "Waits until no transfer can touch it, and forgets it. TimedOut: still in use.")
      .def("_register_rows", &RegisterRows, py::arg("rows"), py::arg("kind"))
      .def("_deregister_ids", &DeregisterIds, py::arg("ids"), py::arg("timeout"))
      .def(
          "metadata",
          [](const Handle& self) {
            return py::bytes(Value(self->Call([](Agent& inside) { return inside.Metadata(); })));
          },
          "What a peer must know to reach this agent and its regions.")
      .def(
          "add_peer",
          [](const Handle& self, const py::object& metadata) {
            const std::string blob = ToPayload(metadata, "metadata").value_or("");
            return Text(Value(self->Call([&](Agent& inside) { return inside.AddPeer(blob); })));
          },
          py::arg("metadata"), "Makes the agent of that metadata known; its name.")
      .def(
          "remove_peer",
          [](const Handle& self, const std::string& peer) {
            Check(self->Call([&](Agent& inside) { return inside.RemovePeer(peer); }));
          },
          py::arg("peer"))
      .def(
          "explain",
          [](const Handle& self, const std::string& peer) {
            return Value(self->Call([&](Agent& inside) { return inside.Explain(peer); }));
          },
          py::arg("peer"), "Which backend and rails reach the peer, and why not the others.")
      .def(
          "regions",
          [](const Handle& self, const std::string& peer) {
            return Value(self->Call([&](Agent& inside) { return inside.Regions(peer); }));
          },
          py::arg("peer"), "What the peer offers, as its metadata says, by address.")
      .def("poll_peer_event", [](const Handle& self) {
        return self->Call([](Agent& inside) { return inside.PollPeerEvent(); });
      });
}

void BindEvents(AgentClass& agent) {
  agent
      .def("poll_events", &PollEvents, py::arg("kinds") = py::none(), py::arg("limit") = 1024,
           "Those that are there, in the order in which they came.")
      .def("wait_events", &WaitEvents, py::arg("timeout") = py::none(),
           py::arg("kinds") = py::none(), py::arg("limit") = 1024,
           "As poll_events, at least one; waits up to `timeout` seconds. TimedOut.")
      .def(
          "event_fd",
          [](const Handle& self, const std::optional<std::vector<std::string>>& kinds) {
            const AgentEventKinds wanted = ToEventKinds(kinds);
            return Value(self->Call([&](Agent& inside) { return inside.EventFd(wanted); }));
          },
          py::arg("kinds") = py::none(), "Readable while such an event waits.")
      .def_property_readonly("_watched_fd",
                             [](const Handle& self) {
                               return Value(self->Call([](Agent& inside) {
                                 return inside.EventFd(AgentEventKinds::kWatchedEnd);
                               }));
                             })
      .def("_take_watched", &TakeWatched)
      .def("poll_notification",
           [](const Handle& self) {
             return self->Call([](Agent& inside) { return inside.PollNotification(); });
           })
      .def("poll_notifications", &PollNotifications, py::arg("limit") = 1024,
           "Those that are there, up to `limit`.")
      .def("wait_notification", &WaitNotification, py::arg("timeout") = py::none(),
           "The next one; waits up to `timeout` seconds. TimedOut.")
      .def_property_readonly(
          "notification_fd",
          [](const Handle& self) {
            return self->Call([](Agent& inside) { return inside.notification_fd(); });
          })
      .def(
          "notifications",
          [](const py::object& self) {
            return py::module_::import("kvxfer._aio").attr("Notifications")(self);
          },
          "An asynchronous iterator over them.")
      .def("quiesce", &Quiesce, py::arg("peer") = "", py::arg("regions") = py::tuple(),
           py::arg("timeout") = 5.0)
      .def(
          "is_quiet",
          [](const Handle& self, uint64_t token) {
            return Value(
                self->Call([&](Agent& inside) { return inside.IsQuiet(QuiesceToken{token}); }));
          },
          py::arg("token"));
}

void BindEnd(AgentClass& agent) {
  agent
      .def("drain", &Drain, py::arg("deadline"),
           "Takes no new work, waits up to `deadline` seconds until leases are fetched or over and "
           "every transfer has ended, and closes. TimedOut: not all of it was, and why.")
      .def("close", &AgentHandle::Close,
           "Ends every transfer as cancelled, closes every connection. Idempotent.")
      .def_property_readonly("closed", &AgentHandle::closed)
      .def("__enter__", [](py::object self) { return self; })
      .def("__exit__", [](const Handle& self, const py::args&) { self->Close(); })
      .def("__repr__", [](const Handle& self) {
        return Text(
            absl::StrCat("<kvxfer.Agent ", self->name(), self->closed() ? ", closed>" : ">"));
      });
}

}  // namespace

std::optional<std::string> ToPayload(py::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  if (PyBytes_Check(object.ptr()) == 0 && PyByteArray_Check(object.ptr()) == 0 &&
      PyMemoryView_Check(object.ptr()) == 0) {
    throw py::type_error(
        absl::StrCat(name, " is a ", Py_TYPE(object.ptr())->tp_name, "; expected bytes"));
  }
  const auto bytes = py::reinterpret_steal<py::bytes>(PyBytes_FromObject(object.ptr()));
  if (!bytes) throw py::error_already_set();
  return std::string(bytes);
}

void BindAgent(py::module_& module) {
  BindRegion(module);
  AgentClass agent(
      module, "Agent",
      "Registers memory, knows peers, moves blocks, tells and is told. One per worker; "
      "several in a process are independent. Any thread may call; what waits does so "
      "without the GIL.");
  agent
      .def(py::init([](const py::str& name, bool environment, const py::kwargs& options) {
             return AgentHandle::Create(ToOptions(std::string(name), environment, options));
           }),
           py::arg("name") = "", py::kw_only(), py::arg("environment") = true)
      .def_property_readonly("name", [](const Handle& self) { return Text(self->name()); })
      .def_property_readonly(
          "incarnation",
          [](const Handle& self) {
            return self->Call([](Agent& inside) { return inside.incarnation().ToString(); });
          })
      .def_property_readonly("listen_address", [](const Handle& self) {
        return self->Call([](Agent& inside) { return inside.listen_address(); });
      });
  BindMemoryAndPeers(agent);
  BindMove<Direction::kWrite>(agent, "write",
                              "Local memory into the peer's: blocks by address, or, with ids, "
                              "blocks of paged regions. Never blocks on the network.");
  BindMove<Direction::kRead>(agent, "read",
                             "The peer's memory into local memory; a notification tells the peer "
                             "that all bytes were read.");
  agent.def("notify", &Notify, py::arg("peer"), py::arg("payload"), py::kw_only(),
            py::arg("order") = "posted", py::arg("deadline") = 30.0, py::arg("stream") = py::none(),
            py::arg("event") = py::none(), py::arg("user_word") = py::none(),
            "A notification alone.");
  BindEvents(agent);
  BindKv(agent);
  BindEnd(agent);
}

}  // namespace kvxfer::python
