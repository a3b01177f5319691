// `kvxfer explain`: which paths lead to a peer, which one is chosen and why, as both sides see it.

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/options.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

struct ExplainFlags {
  std::string server;
  std::string backend;
  std::string listen;
  std::string memory;  // empty: no memory is moved
  bool json = false;
};

// Connects, so that the explanation describes connections and not only what would be possible. With
// `memory` it makes a round trip between such memory, else it sends an empty notification.
absl::Status MakeConnections(const std::optional<MemorySides>& memory, Channel& channel,
                             Agent& agent, KvCache& cache, std::string& peer) {
  constexpr Duration kPatience = std::chrono::seconds(10);
  if (memory) {
    constexpr uint64_t kBytes = 4096;
    auto trip = RoundTrip::Open(channel, agent, cache, kBytes, *memory, kPatience);
    if (!trip.ok()) return trip.status();
    peer = trip->session().peer();
    return trip->Once();
  }
  if (absl::Status s = Into(peer, Introduce(channel, agent)); !s.ok()) return s;
  const absl::StatusOr<Transfer> hello = agent.Notify(peer, "");
  if (!hello.ok()) return hello.status();
  return hello->Wait(kPatience);
}

// "chosen: shm; connected: shm, tcp".
std::string PathSummary(const Explanation& explanation) {
  std::string chosen = "none";
  std::vector<std::string> connected;
  for (const PathExplanation& path : explanation.paths) {
    if (path.chosen) chosen = path.backend;
    if (path.connected) connected.push_back(path.backend);
  }
  return absl::StrCat("chosen: ", chosen,
                      "; connected: ", connected.empty() ? "none" : absl::StrJoin(connected, ", "));
}

absl::Status RunExplain(const ExplainFlags& flags) {
  std::optional<MemorySides> memory;
  if (!flags.memory.empty()) {
    if (absl::Status s = Into(memory, ParseMemorySides(flags.memory)); !s.ok()) return s;
  }
  absl::StatusOr<Channel> channel = ConnectToServer(flags.server);
  if (!channel.ok()) return channel.status();
  KvCache cache;  // before the agent: it outlives its registration
  const auto agent = MakeAgent({.role = "explain",
                                .backends = flags.backend,
                                .listen = flags.listen,
                                .default_listen = LocalHost(*channel),
                                .gpu_memory = memory && memory->here.cuda()});
  if (!agent.ok()) return agent.status();
  std::string peer;
  if (absl::Status s = MakeConnections(memory, *channel, **agent, cache, peer); !s.ok()) return s;
  const absl::StatusOr<Explanation> here = (*agent)->Explain(peer);
  if (!here.ok()) return here.status();
  const absl::StatusOr<Json> there = channel->Call({{"type", "explain"}}, std::chrono::seconds(10));
  if (!there.ok()) return there.status();
  if (flags.json) {
    const auto reverse = there->find("explanation");
    const Json report = {{"here", ToJson(*here)},
                         {"there", reverse == there->end() ? Json::object() : *reverse}};
    std::puts(DumpJson(report, 2).c_str());
  } else {
    std::printf("%s\n\nfrom here:\n%s\nfrom there:\n%s\n", PathSummary(*here).c_str(),
                here->ToString().c_str(), GetString(*there, "text").c_str());
  }
  ExpectPeersToLeave();
  return absl::OkStatus();
}

}  // namespace

void AddExplain(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<ExplainFlags>();
  CLI::App* command =
      AddCommand(app, action, "explain",
                 "Shows which paths lead to a `kvxfer serve`, which one is chosen, and why",
                 [flags] { return RunExplain(*flags); });
  AddText(command, "server", flags->server, "HOST[:PORT]", "Address of `kvxfer serve`")->required();
  AddBackend(command, flags->backend);
  AddListen(command, flags->listen);
  AddMemory(command, flags->memory,
            "Registers such memory on both sides, or on this side and the other, separated by a "
            "comma; moves 4 KiB of it and explains its path (default: no memory)");
  AddJson(command, flags->json);
}

}  // namespace kvxfer::cli
