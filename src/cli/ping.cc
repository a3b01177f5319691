// `kvxfer ping`: round trips of a notified write and its answer.
//
// One round trip: write `size` bytes with a notification; the server's application is notified and
// writes as many bytes back, with a notification. The time ends when that is here.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/cli/agent_setup.h"
#include "src/cli/bootstrap.h"
#include "src/cli/commands.h"
#include "src/cli/host_memory.h"
#include "src/cli/options.h"
#include "src/cli/peer_service.h"
#include "src/cli/process.h"
#include "src/cli/stats.h"
#include "src/cli/units.h"
#include "src/core/clock.h"

namespace kvxfer::cli {
namespace {

struct PingFlags {
  std::string server{};  // empty: a second process
  std::string backend{};
  std::string listen{};
  std::string memory = "mapped";
  uint64_t count = 10;
  uint64_t size = 64;
  uint64_t warm_up = 1;
  Duration interval = std::chrono::milliseconds(100);
  Duration timeout = std::chrono::seconds(5);
  bool json = false;
};

// Thread-safety: one thread, which drives the agent while it waits.
class Pinger {
 public:
  // Prepare allocates and registers `memory`, which must outlive the agent.
  Pinger(const PingFlags& flags, Channel& channel, Agent& agent, HostMemory& memory)
      : flags_(flags), channel_(channel), agent_(agent), memory_(memory) {}

  absl::Status Prepare() {
    const absl::StatusOr<MemorySource> source = ParseMemorySource(flags_.memory);
    if (!source.ok()) return source.status();
    absl::StatusOr<HostMemory> memory = HostMemory::Allocate(*source, flags_.size);
    if (!memory.ok()) return memory.status();
    memory_ = std::move(*memory);
    const absl::StatusOr<RegionId> region =
        agent_.RegisterMemory(memory_.span(), Access::kRemoteWrite);
    if (!region.ok()) return region.status();
    local_ = RegionAt(reinterpret_cast<uint64_t>(memory_.bytes().data()));
    // First so that the server knows us, later so that we know its region.
    if (absl::StatusOr<std::string> s = Introduce(channel_, agent_); !s.ok()) return s.status();
    const absl::StatusOr<Json> ready =
        channel_.Call({{"type", "prepare"},
                       {"bytes", flags_.size},
                       {"memory", flags_.memory},
                       {"answer", ToJson(std::vector<PagedRegion>{local_})}},
                      flags_.timeout);
    if (!ready.ok()) return ready.status();
    const absl::StatusOr<uint64_t> session = GetUint(*ready, "session");
    const absl::StatusOr<uint64_t> base = GetUint(*ready, "base");
    if (!session.ok()) return session.status();
    if (!base.ok()) return base.status();
    session_ = *session;
    remote_ = RegionAt(*base);
    absl::StatusOr<std::string> peer = Introduce(channel_, agent_);
    if (!peer.ok()) return peer.status();
    peer_ = std::move(*peer);
    return absl::OkStatus();
  }

  // The round-trip time in microseconds. `sequence` differs from call to call: it tells the answer
  // from a late one to an earlier ping.
  absl::StatusOr<double> Once(uint64_t sequence) {
    constexpr uint32_t kFirst = 0;
    TransferOptions options;
    options.notification = SessionNote{.session = session_, .sequence = sequence}.Encode();
    options.deadline = flags_.timeout;
    const Time start = Now();
    const absl::StatusOr<Transfer> transfer = agent_.Write(peer_,
                                                           PagedBlocks{.local = {&local_, 1},
                                                                       .remote = {&remote_, 1},
                                                                       .local_ids = {&kFirst, 1},
                                                                       .remote_ids = {&kFirst, 1}},
                                                           options);
    if (!transfer.ok()) return transfer.status();
    const absl::StatusOr<Notification> answer = WaitAnswer(*transfer);
    const Time end = Now();
    if (!answer.ok()) return answer.status();
    const std::optional<SessionNote> note = SessionNote::Decode(answer->payload);
    if (!note || note->sequence != sequence) {
      return absl::InternalError("the answer is not to this ping");
    }
    return Seconds(end - start) * 1e6;
  }

  std::string path() const { return ChosenPath(agent_, peer_); }
  const std::string& peer() const { return peer_; }

 private:
  // The end of a transfer that failed, which wakes nobody who waits for a notification, is looked
  // for in between: no answer can come then, and it tells more than "no answer".
  absl::StatusOr<Notification> WaitAnswer(const Transfer& transfer) {
    constexpr Duration kLook = std::chrono::milliseconds(50);
    for (const Time deadline = Now() + flags_.timeout;;) {
      const Duration left = std::max(deadline - Now(), Duration::zero());
      absl::StatusOr<Notification> answer = agent_.WaitNotification(std::min(left, kLook));
      if (answer.ok() || !absl::IsDeadlineExceeded(answer.status())) return answer;
      if (absl::Status failed = transfer.status(); !failed.ok()) return failed;
      if (left <= kLook) {
        return absl::DeadlineExceededError(absl::StrCat(
            "no answer from ", peer_, " within ", FormatFixed(Seconds(flags_.timeout), 3), " s"));
      }
    }
  }

  // The whole memory as one block, here or at the server.
  PagedRegion RegionAt(uint64_t base) const {
    return {.base = base, .block_bytes = flags_.size, .stride = flags_.size, .count = 1};
  }

  const PingFlags& flags_;
  Channel& channel_;
  Agent& agent_;
  HostMemory& memory_;
  PagedRegion local_;
  PagedRegion remote_;
  uint64_t session_ = 0;
  std::string peer_;
};

void Print(const PingFlags& flags, const Pinger& pinger, const Summary& s) {
  if (flags.json) {
    const Json report = {{"peer", pinger.peer()}, {"path", pinger.path()}, {"bytes", flags.size},
                         {"count", s.count},      {"min_us", s.min},       {"p50_us", s.p50},
                         {"p99_us", s.p99},       {"max_us", s.max},       {"mean_us", s.mean}};
    std::puts(DumpJson(report, 2).c_str());
    return;
  }
  std::printf("%zu round trips of %lu bytes over %s\n", s.count, flags.size, pinger.path().c_str());
  std::printf("rtt min/p50/p99/max = %.1f/%.1f/%.1f/%.1f us\n", s.min, s.p50, s.p99, s.max);
}

absl::Status PingOver(const PingFlags& flags, Channel& channel) {
  HostMemory memory;  // before the agent: it outlives its registration
  const absl::StatusOr<std::unique_ptr<Agent>> agent =
      MakeAgent({.role = "ping",
                 .backends = flags.backend,
                 .listen = flags.listen,
                 .default_listen = LocalHost(channel)});
  if (!agent.ok()) return agent.status();
  Pinger pinger(flags, channel, **agent, memory);
  if (absl::Status s = pinger.Prepare(); !s.ok()) return s;
  const bool each = !flags.json && flags.count <= 100;
  std::vector<double> times;
  // The first ones also make the connection; they are not counted.
  for (uint64_t i = 0; i < flags.warm_up + flags.count; ++i) {
    if (i > flags.warm_up && flags.interval.count() > 0) {
      std::this_thread::sleep_for(flags.interval);
    }
    const absl::StatusOr<double> time = pinger.Once(i);
    if (!time.ok()) return time.status();
    if (i < flags.warm_up) continue;
    times.push_back(*time);
    if (each) {
      std::printf("%lu bytes from %s: seq=%lu time=%.1f us\n", flags.size, pinger.peer().c_str(),
                  i - flags.warm_up + 1, *time);
      std::fflush(stdout);
    }
  }
  Print(flags, pinger, Summarize(std::move(times)));
  ExpectPeersToLeave();
  return absl::OkStatus();
}

absl::Status RunPing(const PingFlags& flags) {
  if (flags.count == 0 || flags.size == 0) {
    return absl::InvalidArgumentError("--count and --size must be above zero");
  }
  if (flags.server.empty()) {
    absl::StatusOr<WorkerProcess> worker = WorkerProcess::Start("bench-worker", "the peer process");
    if (!worker.ok()) return worker.status();
    if (absl::Status s = worker->channel().Send({{"backend", flags.backend}}); !s.ok()) return s;
    return PingOver(flags, worker->channel());
  }
  const absl::StatusOr<HostPort> address = ParseHostPort(flags.server);
  if (!address.ok()) return address.status();
  absl::StatusOr<Channel> channel = ConnectTo(*address, std::chrono::seconds(2));
  if (!channel.ok()) return channel.status();
  return PingOver(flags, *channel);
}

}  // namespace

void AddPing(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("ping", "Measures round trips of small notified writes");
  const auto flags = std::make_shared<PingFlags>();
  command->add_option("server", flags->server,
                      "host:port of kvxfer serve; without it a second process answers");
  command->add_option("--count", flags->count, "Round trips");
  command->add_option("--warm-up", flags->warm_up, "Round trips before, not counted");
  command->add_option("--backend", flags->backend, "tcp, shm, faulty:tcp, ... (default: the best)");
  command->add_option("--listen", flags->listen, kClientListenHelp);
  command->add_option("--memory", flags->memory, kMemoryHelp);
  AddSize(command, "--size", flags->size, "Bytes of each write");
  AddDuration(command, "--interval", flags->interval, "Pause between round trips");
  AddDuration(command, "--timeout", flags->timeout, "Longest wait for an answer");
  command->add_flag("--json", flags->json, "Report as JSON");
  command->callback([flags, &action] { action = [flags] { return RunPing(*flags); }; });
}

}  // namespace kvxfer::cli
