#include "src/cli/agent_setup.h"

#include <unistd.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvxfer/log.h"

namespace kvxfer::cli {
namespace {

// Unique among processes of all hosts, or else two clients of one server would be taken for one.
std::string UniqueName(const std::string& role) {
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0) host = "host";
  host.resize(std::min<size_t>(host.find('\0'), 64));
  return absl::StrCat(role, "-", host, "-", getpid(), "-",
                      absl::Hex(std::random_device{}(), absl::kZeroPad8));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(const AgentSetup& setup) {
  absl::StatusOr<AgentOptions> options = OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  options->name = UniqueName(setup.role);
  if (!setup.backends.empty()) {
    options->backends = absl::StrSplit(setup.backends, ',', absl::SkipEmpty());
    options->require_backends = options->backends;
  }
  if (!setup.listen.empty()) options->listen = setup.listen;
  if (!setup.advertise.empty()) options->advertise = setup.advertise;
  options->faults = {.seed = setup.fault_seed,
                     .reorder_window = 8,
                     .max_delay = std::chrono::milliseconds(1),
                     .overtake = true};
  return Agent::Create(*options);
}

absl::StatusOr<std::string> Introduce(Channel& channel, Agent& agent) {
  const absl::StatusOr<std::string> ours = agent.Metadata();
  if (!ours.ok()) return ours.status();
  const absl::StatusOr<Json> answer =
      channel.Call({{"type", "hello"}, {"metadata", ToHex(*ours)}}, std::chrono::seconds(10));
  if (!answer.ok()) return answer.status();
  const absl::StatusOr<std::string> theirs = GetHex(*answer, "metadata");
  if (!theirs.ok()) return theirs.status();
  return agent.AddPeer(*theirs);
}

void ExpectPeersToLeave() { SetLogLevel(LogLevel::kError); }

std::string ChosenPath(const Agent& agent, const std::string& peer) {
  const absl::StatusOr<Explanation> explanation = agent.Explain(peer);
  if (!explanation.ok()) return std::string(explanation.status().message());
  for (const PathExplanation& path : explanation->paths) {
    if (path.chosen) return absl::StrCat(path.backend, ": ", path.why);
  }
  return "no path";
}

}  // namespace kvxfer::cli
