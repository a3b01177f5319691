#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_split.h"
#include "kvxfer/backend.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/options.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);
// How long rails that are not up with the connection may take. A slow host needs more than one
// attempt.
constexpr Duration kRailPatience = std::chrono::seconds(2);
constexpr uint64_t kPingBytes = 64;
constexpr int kPings = 20;
constexpr uint64_t kSampleBlock = uint64_t{1} << 20;
constexpr uint32_t kSampleBlocks = 32;
constexpr int kSamples = 3;

void KeepExplanations(Channel& channel, const Agent& agent, const std::string& peer,
                      PeerPath& path) {
  if (const auto here = agent.Explain(peer); here.ok()) {
    path.here = ToJson(*here);
    for (const PathExplanation& way : here->paths) {
      // A backend for GPU memory alone is never chosen for host memory.
      if (!way.chosen && way.backend != path.backend) continue;
      path.rails = way.rails;
      path.each_rail = way.each_rail;
      path.why = way.why;
    }
  }
  if (const auto there = channel.Call({{"type", "explain"}}, kPatience); there.ok()) {
    const auto explanation = there->find("explanation");
    if (explanation != there->end()) path.there = *explanation;
  }
}

// Measures round trips. The first one makes the connection and compares what came back.
absl::Status MeasureRoundTrips(Channel& channel, Agent& agent, const MemoryChoice& memory,
                               KvCache& cache, PeerPath& path) {
  auto trip = RoundTrip::Open(channel, agent, cache, kPingBytes, {memory, memory}, kPatience);
  if (!trip.ok()) return trip.status();
  double first = 0;
  if (absl::Status s = trip->Verify(&first); !s.ok()) return s;
  std::vector<double> times;
  for (int i = 0; i < kPings; ++i) {
    const Time start = Now();
    if (absl::Status s = trip->Once(); !s.ok()) return s;
    times.push_back(Seconds(Now() - start) * 1e6);
  }
  const Summary summary = Summarize(std::move(times));
  path.rtt_min_us = summary.min;
  path.rtt_p50_us = summary.p50;
  path.rtt_max_us = summary.max;
  path.reached = true;
  return absl::OkStatus();
}

bool EveryRailIsUp(const Explanation& explanation, const std::string& backend) {
  return std::ranges::all_of(explanation.paths, [&](const PathExplanation& path) {
    return path.backend != backend || std::ranges::all_of(path.each_rail, &RailExplanation::up);
  });
}

// A connection is in use from its first rail on. What is measured and reported is all rails, unless
// one stays down.
void AwaitRails(const Agent& agent, const std::string& peer, const std::string& backend) {
  const Time until = Now() + kRailPatience;
  while (Now() < until) {
    const auto explanation = agent.Explain(peer);
    if (!explanation.ok() || EveryRailIsUp(*explanation, backend)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// The best rate of a few transfers of 32 MiB, each measured until the target has all bytes.
absl::Status MeasureBandwidth(Channel& channel, Agent& agent, const MemoryChoice& memory,
                              KvCache& cache, PeerPath& path) {
  const KvCacheShape shape{
      .pieces = 1, .block_bytes = kSampleBlock, .blocks = kSampleBlocks, .memory = memory};
  if (absl::Status s = Into(cache, KvCache::Create(shape)); !s.ok()) return s;
  if (auto s = cache.RegisterWith(agent, Access::kRemoteRead); !s.ok()) return s.status();
  const auto session = TargetSession::Open(channel, agent, {.shape = shape}, kPatience);
  if (!session.ok()) return session.status();
  AwaitRails(agent, session->peer(), path.backend);
  std::vector<uint32_t> ids(kSampleBlocks);
  for (uint32_t i = 0; i < kSampleBlocks; ++i) ids[i] = i;
  TransferOptions options;
  options.deadline = kPatience;
  for (int i = 0; i < kSamples; ++i) {
    const Time start = Now();
    const absl::StatusOr<Transfer> transfer = agent.Write(session->peer(),
                                                          PagedBlocks{.local = cache.regions(),
                                                                      .remote = session->regions(),
                                                                      .local_ids = ids,
                                                                      .remote_ids = ids},
                                                          options);
    if (!transfer.ok()) return transfer.status();
    if (absl::Status s = transfer->Wait(2 * kPatience); !s.ok()) return s;
    const double bits = 8.0 * static_cast<double>(shape.bytes());
    path.gbps = std::max(path.gbps, bits / Seconds(Now() - start) / 1e9);
  }
  KeepExplanations(channel, agent, session->peer(), path);
  return absl::OkStatus();
}

// The "why" in "... cannot be reached: tcp: why".
std::string CauseOf(const absl::Status& status, const std::string& backend) {
  const std::string words = absl::StrCat("cannot be reached: ", backend, ": ");
  const std::string message(status.message());
  const size_t at = message.find(words);
  return at == std::string::npos ? message : message.substr(at + words.size());
}

// The memory to try a backend with: all but one carry host memory.
MemoryChoice MemoryFor(const std::string& backend) {
  return WithoutDecorator(backend) == "cuda_ipc" ? MemorySource::kCuda : MemorySource::kMapped;
}

// Whether the failure only means that a side has no usable GPU memory.
bool IsWithoutGpu(const MemoryChoice& memory, const absl::Status& status) {
  return memory.cuda() && (absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status) ||
                           absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status));
}

// Tries one backend. The caches live as long as the agent that has them registered.
absl::Status Try(const std::string& server, const PeerCheckOptions& options, PeerPath& path) {
  const std::vector<BackendOrigin> all = AllBackends();
  const auto origin = std::ranges::find(all, WithoutDecorator(path.backend), &BackendOrigin::name);
  if (origin == all.end() || !IsHere(*origin)) {
    path.severity = Severity::kNotApplicable;
    path.why = "not installed";
    return absl::OkStatus();
  }
  absl::StatusOr<Channel> channel = ConnectToServer(server);
  if (!channel.ok()) return channel.status();
  KvCache small;
  KvCache large;
  const auto agent = MakeAgent({.role = "doctor",
                                .backends = path.backend,
                                .listen = options.listen,
                                .default_listen = LocalHost(*channel)});
  if (!agent.ok()) {
    // Without a device or library there is no path that could have a problem.
    path.severity = Severity::kNotApplicable;
    path.why = absl::StrCat("not usable here: ",
                            WithoutName(ToStd(agent.status().message()), path.backend));
    return absl::OkStatus();
  }
  if (absl::Status s = Introduce(*channel, **agent).status(); absl::IsFailedPrecondition(s)) {
    // These backends are not made to reach every host.
    const bool local =
        path.backend == "loopback" || path.backend == "shm" || path.backend == "cuda_ipc";
    path.severity = local ? Severity::kNotApplicable : Severity::kProblem;
    path.why = CauseOf(s, path.backend);
    path.fix = "kvxfer doctor, on this host and on the server's";
    return absl::OkStatus();
  } else if (!s.ok()) {
    return s;
  }
  const MemoryChoice memory = MemoryFor(path.backend);
  absl::Status measured = MeasureRoundTrips(*channel, **agent, memory, small, path);
  if (measured.ok()) measured = MeasureBandwidth(*channel, **agent, memory, large, path);
  if (IsWithoutGpu(memory, measured)) {
    path.severity = Severity::kNotApplicable;
    path.reached = false;
    path.why = absl::StrCat("can only be tried with GPU memory: ", measured.message());
    return absl::OkStatus();
  }
  if (!measured.ok()) return measured;
  JudgeRails(path);
  return absl::OkStatus();
}

PeerPath CheckPath(const std::string& server, const PeerCheckOptions& options,
                   const std::string& backend) {
  PeerPath path{.backend = backend};
  const absl::Status status = Try(server, options, path);
  if (status.ok()) return path;
  path.reached = false;
  path.severity = Severity::kProblem;
  path.why = std::string(status.message());
  path.fix = absl::IsDataLoss(status)
                 ? "the path corrupts bytes: do not use it"
                 : "kvxfer doctor, on this host and on the server's; check the firewall between "
                   "them; kvxfer explain " +
                       server;
  return path;
}

// The backends that --backend names, else those of DefaultBackends, which a server has unless it is
// given others; without the backends that --backend leaves out.
absl::StatusOr<std::vector<std::string>> Wanted(const PeerCheckOptions& options) {
  const std::vector<std::string> names = absl::StrSplit(options.backends, ',', absl::SkipEmpty());
  if (absl::Status s = CheckBackendNames(names, AllBackends()); !s.ok()) {
    return Annotate(s, "--backend");
  }
  std::vector<std::string> wanted;
  std::vector<std::string> left_out;
  for (const std::string& name : names) {
    if (name.starts_with('^')) {
      left_out.push_back(name.substr(1));
    } else {
      wanted.push_back(name);
    }
  }
  if (wanted.empty()) wanted = DefaultBackends();
  std::erase_if(wanted, [&left_out](const std::string& name) {
    return std::ranges::find(left_out, name) != left_out.end();
  });
  if (wanted.empty()) return Invalid("--backend leaves no backend to try");
  return wanted;
}

}  // namespace

absl::StatusOr<PeerReport> CheckPeer(const std::string& server, const PeerCheckOptions& options) {
  const absl::StatusOr<std::vector<std::string>> wanted = Wanted(options);
  if (!wanted.ok()) return wanted.status();
  PeerReport report{.server = server};
  {
    // Fails once, and not for each backend, if there is no server or it has another version.
    absl::StatusOr<Channel> channel = ConnectToServer(server);
    if (!channel.ok()) return channel.status();
    const absl::StatusOr<std::unique_ptr<Agent>> agent = MakeAgent(
        {.role = "doctor", .listen = options.listen, .default_listen = LocalHost(*channel)});
    if (!agent.ok()) return agent.status();
    const absl::StatusOr<std::string> peer = Introduce(*channel, **agent);
    if (!peer.ok()) return peer.status();
    if (const auto explanation = (*agent)->Explain(*peer); explanation.ok()) {
      for (const PathExplanation& path : explanation->paths) {
        if (path.chosen) report.chosen = path.backend;
      }
    }
    ExpectPeersToLeave();
  }
  for (const std::string& backend : *wanted) {
    report.paths.push_back(CheckPath(server, options, backend));
  }
  return report;
}

}  // namespace kvxfer::cli
