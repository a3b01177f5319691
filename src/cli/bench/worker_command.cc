// `kvxfer bench-worker`: the worker processes of `bench` and `ping`.

#include <atomic>
#include <future>
#include <list>
#include <thread>
#include <utility>

#include "src/cli/bench/workers.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/peer_service.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kMaxCount = 4096;

// One target, and the port for its clients.
struct Target {
  BootstrapServer server;
  std::unique_ptr<PeerService> service;
};

absl::StatusOr<std::unique_ptr<Agent>> MakeTargetAgent(const Json& first, uint64_t number) {
  return MakeAgent({.role = "target",
                    .backends = GetString(first, "backend"),
                    .own_port = true,
                    .gpu_memory = first.value("gpu_memory", Json(false)) == true,
                    .fault_seed = GetUint(first, "seed").value_or(1) + number});
}

absl::StatusOr<std::list<Target>> MakeTargets(const Json& first) {
  const absl::StatusOr<uint64_t> count = GetUint(first, "count");
  const absl::StatusOr<uint64_t> bytes = GetUint(first, "session_bytes");
  if (!count.ok()) return count.status();
  if (!bytes.ok()) return bytes.status();
  std::list<Target> targets;
  for (uint64_t i = 0; i < std::min(*count, kMaxCount); ++i) {
    // Loopback, whatever the environment says: the clients are processes of this run.
    auto server = BootstrapServer::Listen({.host = "127.0.0.1", .port = 0});
    if (!server.ok()) return server.status();
    absl::StatusOr<std::unique_ptr<Agent>> agent = MakeTargetAgent(first, i);
    if (!agent.ok()) return agent.status();
    targets.push_back(
        {std::move(*server), std::make_unique<PeerService>(std::move(*agent), *bytes)});
  }
  return targets;
}

absl::StatusOr<Json> Answer(InitiatorGroup& group, const Json& request,
                            std::atomic<uint64_t>& moved) {
  const std::string type = GetString(request, "type");
  if (type == "open") {
    const auto bench = BenchCaseFromJson(request.value("case", Json::object()));
    if (!bench.ok()) return bench.status();
    uint32_t first = 0;
    uint32_t count = 0;
    JsonIn io(request);
    io("first", first);
    io("count", count);
    if (absl::Status s = io.Finish(); !s.ok()) return s;
    const absl::StatusOr<Opened> opened = group.Open(*bench, first, count);
    if (!opened.ok()) return opened.status();
    return FieldsToJson(*opened);
  }
  if (type == "run") {
    const absl::StatusOr<LoopSpec> loop = LoopSpecFromJson(request.value("loop", Json::object()));
    const absl::StatusOr<uint64_t> total = GetUint(request, "total");
    if (!loop.ok()) return loop.status();
    if (!total.ok()) return total.status();
    const auto ran = group.Run(*loop, static_cast<uint32_t>(*total), nullptr, &moved);
    if (!ran.ok()) return ran.status();
    return FieldsToJson(*ran);
  }
  group.Close();
  return Json::object();
}

// Reports progress every kAliveEvery until the answer is ready, and sends it.
absl::Status AnswerAloud(Channel& parent, InitiatorGroup& group, const Json& request) {
  std::atomic<uint64_t> moved{0};
  auto work = std::async(std::launch::async, [&] { return Answer(group, request, moved); });
  while (work.wait_for(kAliveEvery) != std::future_status::ready) {
    // A stopped parent reads nothing; it does not need these reports.
    if (!parent.Writable()) continue;
    if (absl::Status s = parent.Send({{"moved", moved.load()}}); !s.ok()) return s;
  }
  const absl::StatusOr<Json> answer = work.get();
  return parent.Send(answer.ok() ? *answer : ErrorAnswer(answer.status()));
}

absl::Status BenchWorker() {
  absl::StatusOr<Channel> parent = ChannelToParent();
  if (!parent.ok()) return parent.status();
  const absl::StatusOr<Json> first = parent->Receive(std::chrono::seconds(30));
  if (!first.ok()) return first.status();
  // Only the parent logs for the user; it sees the same losses.
  ExpectPeersToLeave();
  const std::string role = GetString(*first, "role");
  if (role == "targets") return ServeTargets(*parent, *first);
  if (role == "initiators") return ServeInitiators(*parent);
  absl::StatusOr<std::unique_ptr<Agent>> agent = MakeTargetAgent(*first, 0);
  if (!agent.ok()) return parent->Send(ErrorAnswer(agent.status()));
  // No limit: the only client is the parent.
  PeerService service(std::move(*agent), UINT64_MAX);
  service.Serve(*parent);
  return absl::OkStatus();
}

}  // namespace

absl::Status ServeTargets(Channel& parent, const Json& first) {
  RaiseDescriptorLimit();
  absl::StatusOr<std::list<Target>> targets = MakeTargets(first);
  if (!targets.ok()) return parent.Send(ErrorAnswer(targets.status()));
  Json addresses = Json::array();
  for (const Target& target : *targets) addresses.push_back(target.server.address().ToString());
  if (absl::Status s = parent.Send({{"addresses", std::move(addresses)}}); !s.ok()) return s;
  // Each target serves until the parent closes its end.
  std::vector<std::jthread> threads;
  for (Target& target : *targets) {
    threads.emplace_back([&target, stop = parent.fd()] {
      target.server.Run(stop, [&target](Channel& channel) { target.service->Serve(channel); });
    });
  }
  threads.clear();  // joins
  return absl::OkStatus();
}

absl::Status ServeInitiators(Channel& parent) {
  RaiseDescriptorLimit();
  InitiatorGroup group;
  for (;;) {
    const absl::StatusOr<Json> request = parent.Receive(kIdle);
    if (!request.ok()) return absl::OkStatus();
    if (!AnswerAloud(parent, group, *request).ok()) return absl::OkStatus();
  }
}

void AddBenchWorker(CLI::App& app, Action& action) {
  AddCommand(app, action, "bench-worker", "A worker process of bench and ping", BenchWorker)
      ->group("");
}

}  // namespace kvxfer::cli
