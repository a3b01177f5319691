// kvxfer.Agent, KV caches: groups, requests, layers, leases.
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/python/agent.h"
#include "bindings/python/integers.h"
#include "bindings/python/stream.h"

namespace kvxfer::python {
namespace {

namespace py = pybind11;
using Handle = std::shared_ptr<AgentHandle>;

KvBlocks ToBlocks(const std::string& cache, const Ids& local_ids, const Ids& remote_ids,
                  uint64_t tokens, uint64_t local_first_token, uint64_t remote_first_token,
                  uint32_t first_layer, std::optional<uint32_t> layers) {
  return {.cache = CacheName(cache),
          .local_ids = local_ids.span(),
          .remote_ids = remote_ids.span(),
          .local_first_token = local_first_token,
          .remote_first_token = remote_first_token,
          .tokens = tokens,
          .first_layer = first_layer,
          .layers = layers.value_or(kAllLayers)};
}

KvOptions ToKvOptions(const py::object& notification, double deadline, int priority,
                      const std::string& backend, const ReadyFlag* ready, const StreamOrder& after,
                      std::optional<uint64_t> user_word) {
  return {.transfer = {.notification = ToPayload(notification, "notification"),
                       .deadline = ToDuration(deadline, "deadline"),
                       .priority = priority,
                       .backend = backend,
                       .ready = ready == nullptr ? nullptr : &ready->value,
                       .after = after.stream,
                       .after_event = after.event,
                       .user_word = user_word}};
}

TransferHandle WriteBlocks(const Handle& agent, const std::vector<std::string>& group,
                           const std::string& cache, const py::object& local_ids,
                           const py::object& remote_ids, uint64_t tokens,
                           uint64_t local_first_token, uint64_t remote_first_token,
                           uint32_t first_layer, std::optional<uint32_t> layers,
                           const std::string& request, const py::object& notification,
                           double deadline, int priority, const std::string& backend,
                           const std::shared_ptr<ReadyFlag>& ready, const py::object& stream,
                           const py::object& event, std::optional<uint64_t> user_word) {
  agent->CheckMemory();
  const StreamOrder after = ToStreamOrder(stream, event);
  const Ids ours(local_ids, "local_ids");
  const Ids theirs(remote_ids, "remote_ids");
  const KvBlocks blocks = ToBlocks(cache, ours, theirs, tokens, local_first_token,
                                   remote_first_token, first_layer, layers);
  KvOptions options =
      ToKvOptions(notification, deadline, priority, backend, ready.get(), after, user_word);
  options.request = RequestName(request);
  return {
      agent,
      Value(agent->Call([&](Agent& inside) { return inside.WriteBlocks(group, blocks, options); })),
      ready, after.event_object};
}

PreparedBlocks PrepareBlocks(const Handle& agent, const std::vector<std::string>& group,
                             const std::string& cache, const py::object& local_ids,
                             const py::object& remote_ids, uint64_t tokens,
                             uint64_t local_first_token, uint64_t remote_first_token,
                             uint32_t first_layer, std::optional<uint32_t> layers) {
  const Ids ours(local_ids, "local_ids");
  const Ids theirs(remote_ids, "remote_ids");
  const KvBlocks blocks = ToBlocks(cache, ours, theirs, tokens, local_first_token,
                                   remote_first_token, first_layer, layers);
  return Value(agent->Call([&](Agent& inside) { return inside.PrepareBlocks(group, blocks); }));
}

TransferHandle WriteLayers(const Handle& agent, const PreparedBlocks& blocks, uint32_t first_layer,
                           std::optional<uint32_t> layers, const std::string& request,
                           const py::object& notification, double deadline, int priority,
                           const std::string& backend, const std::shared_ptr<ReadyFlag>& ready,
                           const py::object& stream, const py::object& event,
                           std::optional<uint64_t> user_word) {
  agent->CheckMemory();
  const StreamOrder after = ToStreamOrder(stream, event);
  KvOptions options =
      ToKvOptions(notification, deadline, priority, backend, ready.get(), after, user_word);
  options.request = RequestName(request);
  return {agent, Value(agent->Call([&](Agent& inside) {
            return inside.WriteLayers(blocks, first_layer, layers.value_or(kAllLayers), options);
          })),
          ready, after.event_object};
}

TransferHandle ReadBlocks(const Handle& agent, const std::vector<std::string>& group,
                          const std::string& cache, const py::object& local_ids,
                          const py::object& remote_ids, uint64_t tokens, uint64_t local_first_token,
                          uint64_t remote_first_token, uint32_t first_layer,
                          std::optional<uint32_t> layers, const std::string& lease,
                          const std::string& lease_contents, double lease_wait,
                          const std::vector<uint32_t>& stages, const py::object& notification,
                          double deadline, int priority, const std::string& backend,
                          const py::object& stream, const py::object& event,
                          std::optional<uint64_t> user_word) {
  agent->CheckMemory();
  const StreamOrder after = ToStreamOrder(stream, event);
  const Ids ours(local_ids, "local_ids");
  const Ids theirs(remote_ids, "remote_ids");
  const KvBlocks blocks = ToBlocks(cache, ours, theirs, tokens, local_first_token,
                                   remote_first_token, first_layer, layers);
  KvOptions options =
      ToKvOptions(notification, deadline, priority, backend, nullptr, after, user_word);
  options.lease = LeaseName(lease);
  options.lease_contents = lease_contents;
  options.lease_wait = ToDuration(lease_wait, "lease_wait");
  options.stages = stages;
  return {
      agent,
      Value(agent->Call([&](Agent& inside) { return inside.ReadBlocks(group, blocks, options); })),
      nullptr, after.event_object};
}

void RegisterKvCache(const Handle& agent, const std::string& name, const KvLayout& layout,
                     const std::vector<py::object>& tensors) {
  std::vector<uint64_t> addresses;
  addresses.reserve(tensors.size());
  for (const py::object& tensor : tensors) addresses.push_back(AddressOf(tensor, "tensors"));
  Check(agent->Call(
      [&](Agent& inside) { return inside.RegisterKvCache(CacheName(name), layout, addresses); }));
}

void BindRequests(AgentClass& agent) {
  agent
      .def("write_blocks", &WriteBlocks, py::arg("group"), py::arg("cache"), py::arg("local_ids"),
           py::arg("remote_ids"), py::arg("tokens"), py::kw_only(),
           py::arg("local_first_token") = 0, py::arg("remote_first_token") = 0,
           py::arg("first_layer") = 0, py::arg("layers") = py::none(), py::arg("request") = "",
           py::arg("notification") = py::none(), py::arg("deadline") = 30.0,
           py::arg("priority") = 0, py::arg("backend") = "", py::arg("ready") = py::none(),
           py::arg("stream") = py::none(), py::arg("event") = py::none(),
           py::arg("user_word") = py::none(),
           "What of the request this worker has and the group needs, into the group's caches.")
      .def("prepare_blocks", &PrepareBlocks, py::arg("group"), py::arg("cache"),
           py::arg("local_ids"), py::arg("remote_ids"), py::arg("tokens"), py::kw_only(),
           py::arg("local_first_token") = 0, py::arg("remote_first_token") = 0,
           py::arg("first_layer") = 0, py::arg("layers") = py::none(),
           "Does once what write_blocks does for each layer of a request, and posts nothing.")
      .def("write_layers", &WriteLayers, py::arg("blocks"), py::arg("first_layer"),
           py::arg("layers") = 1, py::kw_only(), py::arg("request") = "",
           py::arg("notification") = py::none(), py::arg("deadline") = 30.0,
           py::arg("priority") = 0, py::arg("backend") = "", py::arg("ready") = py::none(),
           py::arg("stream") = py::none(), py::arg("event") = py::none(),
           py::arg("user_word") = py::none(),
           "Writes layers of prepared blocks; None: all prepared ones from first_layer on.")
      .def("read_blocks", &ReadBlocks, py::arg("group"), py::arg("cache"), py::arg("local_ids"),
           py::arg("remote_ids"), py::arg("tokens"), py::kw_only(),
           py::arg("local_first_token") = 0, py::arg("remote_first_token") = 0,
           py::arg("first_layer") = 0, py::arg("layers") = py::none(), py::arg("lease") = "",
           py::arg("lease_contents") = "", py::arg("lease_wait") = 0.0,
           py::arg("stages") = std::vector<uint32_t>(), py::arg("notification") = py::none(),
           py::arg("deadline") = 30.0, py::arg("priority") = 0, py::arg("backend") = "",
           py::arg("stream") = py::none(), py::arg("event") = py::none(),
           py::arg("user_word") = py::none(),
           "What this worker needs of the request, out of the group's caches.")
      .def(
          "wait_layers",
          [](const Handle& self, const std::string& cache, const std::string& request,
             uint32_t layers, double timeout) {
            Check(self->CallInTurns(timeout, [&](Agent& inside, Duration turn) {
              return inside.WaitLayers(CacheName(cache), RequestName(request), layers, turn);
            }));
          },
          py::arg("cache"), py::arg("request"), py::arg("layers"), py::arg("timeout"))
      .def(
          "drop_request",
          [](const Handle& self, const std::string& cache, const std::string& request) {
            Check(self->Call([&](Agent& inside) {
              return inside.DropRequest(CacheName(cache), RequestName(request));
            }));
          },
          py::arg("cache"), py::arg("request"));
}

void BindLeases(AgentClass& agent) {
  agent
      .def(
          "lease_blocks",
          [](const Handle& self, const std::string& cache, const std::string& lease,
             const py::object& ids, double hold, const std::string& contents) {
            const Ids blocks(ids, "ids");
            Check(self->Call([&](Agent& inside) {
              return inside.LeaseBlocks(CacheName(cache), LeaseName(lease), blocks.span(),
                                        ToDuration(hold, "hold"), contents);
            }));
          },
          py::arg("cache"), py::arg("lease"), py::arg("ids"), py::arg("hold"),
          py::arg("contents") = "",
          "Holds blocks for peers that will fetch them, for `hold` seconds unless all have before.")
      .def(
          "renew_lease",
          [](const Handle& self, const std::string& lease, double hold) {
            Check(self->Call([&](Agent& inside) {
              return inside.RenewLease(LeaseName(lease), ToDuration(hold, "hold"));
            }));
          },
          py::arg("lease"), py::arg("hold"))
      .def(
          "release_lease",
          [](const Handle& self, const std::string& lease) {
            Check(self->Call([&](Agent& inside) { return inside.ReleaseLease(LeaseName(lease)); }));
          },
          py::arg("lease"))
      .def(
          "revoke_lease",
          [](const Handle& self, const std::string& lease) {
            Check(self->Call([&](Agent& inside) { return inside.RevokeLease(LeaseName(lease)); }));
          },
          py::arg("lease"))
      .def("poll_kv_event",
           [](const Handle& self) {
             return self->Call([](Agent& inside) { return inside.PollKvEvent(); });
           })
      .def("count_kv", [](const Handle& self) {
        return Value(self->Call([](Agent& inside) { return inside.CountKv(); }));
      });
}

}  // namespace

void BindKv(AgentClass& agent) {
  agent
      .def("register_kv_cache", &RegisterKvCache, py::arg("name"), py::arg("layout"),
           py::arg("tensors"),
           "Makes tensors, by object or address, one KV cache that peers know by name and layout; "
           "each lies within one registered region.")
      .def(
          "deregister_kv_cache",
          [](const Handle& self, const std::string& name) {
            Check(self->Call(
                [&](Agent& inside) { return inside.DeregisterKvCache(CacheName(name)); }));
          },
          py::arg("name"));
  BindRequests(agent);
  BindLeases(agent);
}

}  // namespace kvxfer::python
