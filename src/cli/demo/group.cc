#include <poll.h>

#include <algorithm>
#include <utility>

#include "src/cli/common/channel.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/demo.h"
#include "src/cli/demo/shard.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

// Longer than a rank's own time-out, which may be 10 % late.
Duration WithGrace(Duration timeout) { return timeout + timeout / 4 + std::chrono::seconds(2); }

// The rank processes, seen from their parent.
//
// Thread-safety: one thread. The destructor kills the processes.
//
// An error of a rank is returned at once, with the rank's name. If a process was lost, its loss is
// returned, whatever the others report about it. DeadlineExceeded names a rank that does not answer
// within the time-out of DemoConfig plus some grace, during which the rank can report its own
// time-out.
class DemoWorkers {
 public:
  // When this returns, every prefill rank knows every decode rank, in their order.
  static absl::StatusOr<DemoWorkers> Start(std::span<const DemoShard> prefill,
                                           std::span<const DemoShard> decode) {
    DemoWorkers workers(prefill.size(), prefill.front().config.timeout);
    std::vector<Json> hellos;
    for (const std::span<const DemoShard> side : {prefill, decode}) {
      for (const DemoShard& shard : side) {
        absl::StatusOr<WorkerProcess> worker = WorkerProcess::Start("demo-rank", shard.name());
        if (!worker.ok()) return worker.status();
        workers.workers_.push_back(std::move(*worker));
        hellos.push_back(ToJson(shard));
      }
    }
    const absl::StatusOr<std::vector<Json>> answers = workers.CallEach(hellos);
    if (!answers.ok()) return answers.status();
    for (size_t i = workers.prefill_; i < answers->size(); ++i) {
      const Json meet = {{"type", "meet"}, {"metadata", GetString((*answers)[i], "metadata")}};
      if (auto met = workers.Call(meet, nullptr); !met.ok()) return met.status();
    }
    return workers;
  }

  size_t prefill() const { return prefill_; }
  size_t decode() const { return workers_.size() - prefill_; }

  // Sends one message to every rank of a side; null: none. The answers are in the order of ranks,
  // prefill before decode, and null for ranks that got no message.
  absl::StatusOr<std::vector<Json>> Call(const Json& to_prefill, const Json& to_decode) {
    std::vector<Json> messages(prefill_, to_prefill);
    messages.resize(workers_.size(), to_decode);
    return CallEach(messages);
  }

  // Lets all processes end, and waits for that.
  absl::Status Leave() {
    for (WorkerProcess& worker : workers_) {
      if (auto s = worker.channel().Send({{"type", "leave"}}, timeout_); !s.ok()) return s;
    }
    for (WorkerProcess& worker : workers_) {
      if (absl::Status s = worker.Join(timeout_); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  DemoWorkers(size_t prefill, Duration timeout) : prefill_(prefill), timeout_(timeout) {}
  absl::StatusOr<std::vector<Json>> CallEach(const std::vector<Json>& messages) {
    absl::StatusOr<std::vector<Json>> answers = Collect(messages);
    if (!absl::IsUnavailable(answers.status()) && !absl::IsAborted(answers.status()))
      return answers;
    std::vector<WorkerProcess*> workers;
    for (WorkerProcess& worker : workers_) workers.push_back(&worker);
    absl::Status ended = FindEnded(workers);
    if (!ended.ok()) return ended;
    return answers;
  }

  absl::StatusOr<std::vector<Json>> Collect(const std::vector<Json>& messages) {
    std::vector<Json> answers(workers_.size());
    std::vector<pollfd> waits(workers_.size(), {.fd = -1, .events = POLLIN, .revents = 0});
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (messages[i].is_null()) continue;
      if (auto s = workers_[i].channel().Send(messages[i], timeout_); !s.ok()) return s;
      waits[i].fd = workers_[i].channel().fd();
    }
    const Time end = Now() + WithGrace(timeout_);
    for (;;) {
      const auto asked = std::ranges::find_if(waits, [](const pollfd& w) { return w.fd >= 0; });
      if (asked == waits.end()) return answers;
      if (Now() > end) {
        return absl::DeadlineExceededError(absl::StrCat(
            workers_[static_cast<size_t>(asked - waits.begin())].channel().peer(),
            " does not answer within ", std::chrono::ceil<std::chrono::seconds>(timeout_).count(),
            " s (--timeout); is it stopped?"));
      }
      poll(waits.data(), waits.size(), 100);
      for (size_t i = 0; i < waits.size(); ++i) {
        if (waits[i].fd < 0 || waits[i].revents == 0) continue;
        if (absl::Status s = Into(answers[i], workers_[i].channel().ReceiveAnswer(timeout_));
            !s.ok())
          return s;
        waits[i].fd = -1;
      }
    }
  }

  size_t prefill_;
  Duration timeout_;
  std::vector<WorkerProcess> workers_;
};

// Limits of a round, so that its block tables fit into a message.
constexpr size_t kMaxRoundRequests = 64;
constexpr size_t kMaxIds = 1 << 15;

// The blocks of a side. Every rank of the side uses the same ids.
struct SideBlocks {
  BlockAllocator free;
  size_t each;  // blocks of one request
  DemoTables tables{};

  bool Add() {
    std::optional<std::vector<uint32_t>> ids = free.Allocate(each);
    if (ids) tables.push_back(std::move(*ids));
    return ids.has_value();
  }
  void FreeAll() {
    for (const auto& ids : tables) free.Free(ids);
    tables.clear();
  }
};

absl::StatusOr<SideBlocks> BlocksOf(const DemoShard& shard, uint64_t seed) {
  const absl::StatusOr<KvCacheShape> shape = CacheShapeOf(shard);
  if (!shape.ok()) return shape.status();
  return SideBlocks{.free = BlockAllocator(shape->blocks, seed),
                    .each = shard.config.blocks_per_request()};
}

// Assigns blocks on both sides to as many requests from `first` on as possible.
void FillRound(uint64_t first, uint64_t end, SideBlocks& prefill, SideBlocks& decode) {
  const size_t most =
      std::min<size_t>(kMaxRoundRequests, kMaxIds / std::max(prefill.each, decode.each));
  const size_t wanted = std::min<size_t>(end - first, most);
  while (prefill.tables.size() < wanted && prefill.Add()) {
    if (decode.Add()) continue;
    prefill.free.Free(prefill.tables.back());
    prefill.tables.pop_back();
    return;
  }
}

// Collects the errors that each decode rank found, by request. Internal: a rank does not report on
// all requests.
absl::Status TakeErrors(const DemoWorkers& workers, const std::vector<Json>& answers,
                        uint64_t first, size_t requests, DemoGroupRun& run) {
  for (size_t rank = 0; rank < workers.decode(); ++rank) {
    const Json errors = answers[workers.prefill() + rank].value("errors", Json::array());
    if (errors.size() != requests) {
      return absl::InternalError(absl::StrCat(run.decode[rank].name(), " checked ", errors.size(),
                                              " of ", requests, " requests"));
    }
    for (size_t i = 0; i < requests; ++i) {
      const std::string text = errors[i].is_string() ? errors[i].get<std::string>() : "no answer";
      if (text.empty()) {
        ++run.verified[rank];
      } else if (std::string& error = run.errors[first + i]; error.empty()) {
        error = run.decode[rank].name() + ": " + text;
      }
    }
  }
  return absl::OkStatus();
}

// Moves one round and returns its number of requests.
absl::StatusOr<size_t> RunRound(DemoWorkers& workers, uint64_t first, SideBlocks& prefill,
                                SideBlocks& decode, DemoGroupRun& run) {
  const DemoConfig& config = run.prefill.front().config;
  FillRound(first, config.requests, prefill, decode);
  Json fill = {{"type", "prepare"}, {"first", first}, {"tables", prefill.tables}};
  if (config.corrupt) fill["corrupt"] = config.requests / 2;
  const Json look = {{"type", "prepare"}, {"first", first}, {"tables", decode.tables}};
  if (auto s = workers.Call(fill, look); !s.ok()) return s.status();
  const int64_t start = MonotonicNanoseconds();
  const absl::StatusOr<std::vector<Json>> arrived =
      workers.Call({{"type", "write"}, {"tables", decode.tables}}, {{"type", "await"}});
  if (!arrived.ok()) return arrived.status();
  for (size_t rank = 0; rank < workers.decode(); ++rank) {
    const double end = GetNumber((*arrived)[workers.prefill() + rank], "arrived_ns");
    run.wire_seconds[rank] += (end - static_cast<double>(start)) * 1e-9;
  }
  const absl::StatusOr<std::vector<Json>> checked = workers.Call(nullptr, {{"type", "check"}});
  if (!checked.ok()) return checked.status();
  const size_t requests = decode.tables.size();
  if (auto s = TakeErrors(workers, *checked, first, requests, run); !s.ok()) return s;
  prefill.FreeAll();
  decode.FreeAll();
  return requests;
}

absl::Status Finish(DemoWorkers& workers, DemoGroupRun& run) {
  const Json finish = {{"type", "finish"}};
  const absl::StatusOr<std::vector<Json>> last = workers.Call(finish, finish);
  if (!last.ok()) return last.status();
  run.cpu_seconds = CpuSeconds();
  for (size_t i = 0; i < last->size(); ++i) {
    run.cpu_seconds += GetNumber((*last)[i], "cpu_seconds");
    const bool decode = i >= workers.prefill();
    const DemoShard& shard = decode ? run.decode[i - workers.prefill()] : run.prefill[i];
    const std::string written = GetString((*last)[i], "guards");
    if (!written.empty()) run.guards.Update(absl::DataLossError(shard.name() + ": " + written));
  }
  for (const DemoShare& share : run.shares) {
    const Json paths = (*last)[share.prefill].value("paths", Json::array());
    run.paths.push_back(share.decode < paths.size() && paths[share.decode].is_string()
                            ? paths[share.decode].get<std::string>()
                            : "unknown");
  }
  return workers.Leave();
}

absl::StatusOr<DemoGroupRun> PlanRun(const DemoConfig& config, const KvSide& prefill,
                                     const KvSide& decode) {
  for (const KvSide* side : {&prefill, &decode}) {
    if (absl::Status s = CheckKvSide(*side); !s.ok()) return s;
  }
  const absl::StatusOr<DemoMemory> memory = DemoMemoryOf(config.memory, prefill.tp, decode.tp);
  if (!memory.ok()) return memory.status();
  DemoGroupRun run;
  for (const auto& [side, shards] :
       {std::pair(&prefill, &run.prefill), std::pair(&decode, &run.decode)}) {
    const bool is_prefill = side == &prefill;
    const std::vector<MemoryChoice>& of_ranks = is_prefill ? memory->prefill : memory->decode;
    const std::vector<MemoryChoice>& others = is_prefill ? memory->decode : memory->prefill;
    DemoConfig of_side = config;
    of_side.memory = of_ranks.front().ToString();
    of_side.memory_there = others.front().ToString();
    absl::StatusOr<std::vector<DemoShard>> made = ShardsOf(of_side, *side);
    if (!made.ok()) return made.status();
    for (DemoShard& shard : *made) shard.config.memory = of_ranks[shard.rank].ToString();
    *shards = std::move(*made);
  }
  if (absl::Status s = Into(run.shares, SharesOf(run.prefill, run.decode)); !s.ok()) return s;
  run.errors.resize(config.requests);
  run.verified.resize(run.decode.size());
  run.wire_seconds.resize(run.decode.size());
  return run;
}

}  // namespace

size_t DemoGroupRun::CountVerified() const {
  return static_cast<size_t>(std::ranges::count(errors, std::string()));
}

uint64_t DemoGroupRun::bytes() const {
  uint64_t sum = 0;
  for (const DemoShard& shard : decode) sum += shard.config.requests * shard.request_bytes();
  return sum;
}

absl::StatusOr<DemoGroupRun> RunDemoGroup(const DemoConfig& config, const KvSide& prefill,
                                          const KvSide& decode) {
  absl::StatusOr<DemoGroupRun> run = PlanRun(config, prefill, decode);
  if (!run.ok()) return run;
  absl::StatusOr<SideBlocks> from = BlocksOf(run->prefill.front(), InitiatorSeed(config.seed));
  if (!from.ok()) return from.status();
  absl::StatusOr<SideBlocks> to = BlocksOf(run->decode.front(), TargetSeed(config.seed));
  if (!to.ok()) return to.status();
  absl::StatusOr<DemoWorkers> workers = DemoWorkers::Start(run->prefill, run->decode);
  if (!workers.ok()) return workers.status();
  const Time start = Now();
  {
    ProgressBar bar("requests", config.requests);
    for (uint64_t done = 0; done < config.requests;) {
      const absl::StatusOr<size_t> moved = RunRound(*workers, done, *from, *to, *run);
      if (!moved.ok()) return moved.status();
      done += *moved;
      bar.Update(done);
    }
  }
  run->seconds = Seconds(Now() - start);
  if (absl::Status s = Finish(*workers, *run); !s.ok()) return s;
  return run;
}

}  // namespace kvxfer::cli
