#include "src/cli/common/agent_setup.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kvxfer/log.h"
#include "src/backends/faulty/options.h"
#include "src/backends/registry.h"
#include "src/cli/common/backend_names.h"
#include "src/cli/common/host_port.h"
#include "src/cli/common/stats.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/cuda/driver.h"
#include "src/cuda/present.h"

namespace kvxfer::cli {
namespace {

// Unique among the processes of all hosts: a server tells its clients apart by their names.
std::string UniqueName(const std::string& role) {
  std::string host(256, '\0');
  if (gethostname(host.data(), host.size() - 1) != 0) host = "host";
  host = Printable(host.c_str(), 64);
  return absl::StrCat(role, "-", host, "-", getpid(), "-",
                      absl::Hex(RandomNonZero32(), absl::kZeroPad8));
}

// KVXFER_LISTEN with the default value looks as if it were not set; --listen does not.
absl::Status SetAddresses(const AgentSetup& setup, AgentOptions& options) {
  const bool by_default = options.listen == AgentOptions().listen;
  if (by_default && !setup.default_listen.empty()) options.listen = setup.default_listen;
  if (!setup.listen.empty()) options.listen = setup.listen;
  if (!setup.advertise.empty()) options.advertise = setup.advertise;
  absl::StatusOr<HostPort> listen = ParseHostPort(options.listen, 0);
  if (!listen.ok()) return Annotate(listen.status(), "--listen (KVXFER_LISTEN)");
  if (setup.own_port) listen->port = 0;
  options.listen = listen->ToString();
  if (!setup.own_port || options.advertise.empty()) return absl::OkStatus();
  absl::StatusOr<HostPort> advertise = ParseHostPort(options.advertise, 0);
  if (!advertise.ok()) return Annotate(advertise.status(), "KVXFER_ADVERTISE");
  advertise->port = 0;
  options.advertise = advertise->ToString();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(const AgentSetup& setup) {
  // An error shows when GPU memory is allocated or registered.
  if (setup.gpu_memory && cuda::DriverPresent().ok()) (void)cuda::Driver::Get();
  absl::StatusOr<AgentOptions> options = OptionsFromEnvironment();
  if (!options.ok()) return options.status();
  options->name = UniqueName(setup.role);
  if (!setup.backends.empty()) {
    options->backends = absl::StrSplit(setup.backends, ',', absl::SkipEmpty());
    absl::Status known = CheckBackendNames(options->backends, ListBackends(*options));
    if (!known.ok()) return Annotate(known, "--backend");
    // "^shm" requires no backend.
    const bool leaves_out = absl::StartsWith(setup.backends, "^");
    if (!leaves_out) options->require_backends = options->backends;
  }
  if (absl::Status status = SetAddresses(setup, *options); !status.ok()) return status;
  // Enough to break code that relies on an order, and not so much that a run takes long.
  if (absl::StrContains(setup.backends, "faulty:")) {
    options->backend["faulty"] =
        WriteOptions(faulty::FaultOptions{.seed = setup.fault_seed,
                                          .reorder_window = 8,
                                          .max_delay = std::chrono::milliseconds(1),
                                          .overtake = true});
  }
  absl::StatusOr<std::unique_ptr<Agent>> agent = Agent::Create(*options);
  // There is no peer yet that could be unavailable: this host lacks something.
  if (absl::IsUnavailable(agent.status()) || absl::IsUnimplemented(agent.status())) {
    return absl::FailedPreconditionError(agent.status().message());
  }
  return agent;
}

absl::Status CheckVersion(const Json& hello, const std::string& they, const std::string& we) {
  const std::string version = GetString(hello, "version");
  if (version == KVXFER_VERSION) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      they, " runs ", version.empty() ? "another version" : "version " + version, " of kvxfer, ",
      we, " ", KVXFER_VERSION, "; run the same version on both hosts"));
}

absl::StatusOr<std::string> Introduce(Channel& channel, Agent& agent) {
  const absl::StatusOr<std::string> ours = agent.Metadata();
  if (!ours.ok()) return ours.status();
  const Json hello = {{"type", "hello"},
                      {"metadata", ToHex(*ours)},
                      {"version", KVXFER_VERSION},
                      {"boot_id", BootId()}};
  const absl::StatusOr<Json> answer = channel.Call(hello, std::chrono::seconds(10));
  if (!answer.ok()) return answer.status();
  if (absl::Status s = CheckVersion(*answer, channel.peer(), "this program"); !s.ok()) return s;
  const absl::StatusOr<std::string> theirs = GetHex(*answer, "metadata");
  if (!theirs.ok()) return theirs.status();
  return agent.AddPeer(*theirs);
}

void ExpectPeersToLeave() { SetLogLevel(LogLevel::kError); }

std::string ChosenPath(const Agent& agent, const std::string& peer, const MemorySides& memory) {
  const absl::StatusOr<Explanation> explanation = agent.Explain(peer);
  if (!explanation.ok()) return std::string(explanation.status().message());
  const auto kind = [](const MemoryChoice& choice) {
    return choice.cuda() ? MemoryKind::kCuda : MemoryKind::kHost;
  };
  const auto pair = std::ranges::find_if(explanation->memory, [&](const MemoryExplanation& one) {
    return one.local == kind(memory.here) && one.remote == kind(memory.there);
  });
  const bool found = pair != explanation->memory.end();
  if (found && pair->backend.empty()) return absl::StrCat("no path: ", pair->why);
  for (const PathExplanation& path : explanation->paths) {
    if (found ? path.backend != pair->backend : !path.chosen) continue;
    return absl::StrCat(path.backend, ": ", path.why,
                        found && pair->staged ? "; staged in host memory" : "");
  }
  return "no path";
}

}  // namespace kvxfer::cli
