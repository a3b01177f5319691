#include "src/cli/bench/plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "src/cli/common/kv_model.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/units.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kMaxPeers = 256;  // as many as one server takes: BootstrapServer::kMaxClients
constexpr uint64_t kMaxThreads = 64;
constexpr uint64_t kMaxBlockBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxStreams = 1024;
constexpr uint64_t kMaxRequests = 1'000'000'000;
constexpr Duration kDefaultRun = std::chrono::seconds(2);

absl::Status CheckNumbers(const BenchOptions& o) {
  if (absl::Status s =
          FirstError({CheckRange("--peers", o.peers.value_or(1), 1, kMaxPeers),
                      CheckRange("--threads", o.threads.value_or(1), 1, kMaxThreads),
                      CheckRange("--iters", o.iters.value_or(1), 1, kMaxRequests),
                      CheckRange("--requests", o.requests.value_or(1), 1, kMaxRequests),
                      CheckRange("--warmup", o.warmup.value_or(0), 0, kMaxRequests),
                      CheckRange("--timeline", o.timeline.value_or(1), 1, kMaxTimeline),
                      CheckRange("--tokens", o.tokens.value_or(1), 1, 1u << 24),
                      CheckRange("--block-tokens", o.block_tokens, 1, kTokensPerHash),
                      CheckRange("--tp", o.tp, 1, 1024), ParseMemorySides(o.memory).status()});
      !s.ok())
    return s;
  if (absl::Status s = CheckRunTimes(o); !s.ok()) return s;
  if (!(o.speedup > 0) || o.speedup > 1e6) return Invalid("--speedup must be above 0 to 1000000");
  return absl::OkStatus();
}

// Contradictions that depend on the values of options, so that CLI11 cannot find them.
absl::Status CheckContradictions(const BenchOptions& o) {
  if (o.op == "read" && o.latency) {
    return Invalid("--latency measures writes and their answers: it takes no --op read");
  }
  const bool fan_out = o.scheme == "onetomany" && o.peers.value_or(o.servers.size()) > 1;
  for (const auto& [given, name] :
       {std::pair(o.latency, "--latency"), {o.bidirectional, "--bidirectional"}}) {
    if (given && fan_out) return Invalid(name, " with several --peers needs --scheme manytoone");
  }
  if (o.servers.size() > 1 && o.scheme != "onetomany") {
    return Invalid("several servers need --scheme onetomany");
  }
  if (o.scheme == "onetomany" && !o.servers.empty() &&
      o.peers.value_or(o.servers.size()) != o.servers.size()) {
    return Invalid("--peers ", *o.peers, " with ", o.servers.size(),
                   " servers: name one server for each peer, or no server");
  }
  if (o.tokens && o.model.empty()) {
    return Invalid("--tokens needs --model, or --prefill-tp or --decode-tp");
  }
  if ((o.start_block_size > 0) != (o.max_block_size > 0)) {
    return Invalid("--start-block-size and --max-block-size need each other");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> BlockSizes(const BenchOptions& o) {
  if (o.start_block_size > 0) {
    return ParseSizes(absl::StrCat(o.start_block_size, ":", o.max_block_size));
  }
  if (!o.block_sizes.empty()) return o.block_sizes;
  return ParseSizes(o.latency ? "4K" : "4K:4M");
}

BenchCase CommonCase(const BenchOptions& o) {
  BenchCase bench;
  bench.backend = o.backend;
  bench.listen = o.listen;
  bench.memory = ParseMemorySides(o.memory).value_or(MemorySides{});  // parsed before
  bench.write = o.op == "write";
  bench.latency = o.latency;
  bench.by_message = o.answer == "message";
  bench.bidirectional = o.bidirectional;
  bench.threads = o.threads.value_or(1);
  bench.seed = o.seed;
  bench.timeout = o.timeout;
  return bench;
}

absl::Status AddRawCases(const BenchOptions& o, BenchPlan& plan) {
  const absl::StatusOr<std::vector<uint64_t>> sizes = BlockSizes(o);
  if (!sizes.ok()) return sizes.status();
  BenchCase bench = CommonCase(o);
  const uint64_t streams = plan.peers() * bench.threads;
  for (uint64_t size : *sizes) {
    bench.block_bytes = size;
    bench.request_blocks = o.latency ? 1 : o.total / streams / size;
    if (bench.request_blocks == 0) {
      const std::string part =
          streams == 1 ? "" : absl::StrCat(", shared by ", streams, " streams (peers by threads),");
      return Invalid("--total of ", FormatBytes(o.total), part, " holds no block of ",
                     FormatBytes(size));
    }
    plan.cases.push_back(bench);
  }
  return absl::OkStatus();
}

absl::Status AddTraceCase(const BenchOptions& o, BenchCase bench, BenchPlan& plan) {
  absl::StatusOr<std::vector<TraceRequest>> requests = LoadKvTrace(o.trace, o.requests.value_or(0));
  if (!requests.ok()) return requests.status();
  bench.cache_blocks = o.cache_bytes / (bench.pieces * bench.block_bytes);
  for (size_t i = 0; i < requests->size(); ++i) {
    const uint64_t blocks = (*requests)[i].blocks(o.block_tokens);
    if (blocks <= bench.cache_blocks) continue;
    return Invalid("request ", i + 1, " of the trace has ", (*requests)[i].tokens, " tokens, ",
                   FormatBytes(blocks * bench.pieces * bench.block_bytes), "; --cache-size is ",
                   FormatBytes(o.cache_bytes));
  }
  bench.threads = o.threads.value_or(4);
  bench.request_blocks =
      std::min(requests->front().blocks(o.block_tokens), bench.cache_blocks / bench.threads);
  if (bench.request_blocks == 0) {
    return Invalid("--cache-size of ", FormatBytes(o.cache_bytes),
                   " holds less than one block for each of --threads ", bench.threads);
  }
  plan.cases.push_back(bench);
  plan.trace = TraceSpec{.requests = std::move(*requests),
                         .block_tokens = o.block_tokens,
                         .cache_blocks = static_cast<uint32_t>(bench.cache_blocks),
                         .speedup = o.speedup,
                         .seed = o.seed};
  return absl::OkStatus();
}

absl::Status AddModelCase(const BenchOptions& o, BenchPlan& plan) {
  const absl::StatusOr<KvModel> model = LoadKvModel(o.model.empty() ? "llama-3.1-8b" : o.model);
  if (!model.ok()) return model.status();
  if (absl::Status s = CheckTp(*model, "--tp", o.tp); !s.ok()) return s;
  BenchCase bench = CommonCase(o);
  bench.pieces = model->pieces();
  bench.block_bytes = o.block_tokens * model->TokenBytes(static_cast<uint32_t>(o.tp));
  const uint64_t tokens = o.tokens.value_or(kDefaultTokens);
  bench.request_blocks = (tokens + o.block_tokens - 1) / o.block_tokens;
  if (bench.pieces > kMaxPieces || bench.block_bytes > kMaxBlockBytes) {
    return Invalid("model ", model->name, " with --block-tokens ", o.block_tokens, ": ",
                   bench.pieces, " regions of blocks of ", FormatBytes(bench.block_bytes),
                   " are more than ", kMaxPieces, " of ", FormatBytes(kMaxBlockBytes));
  }
  plan.model = model->name;
  plan.tp = o.tp;
  if (!o.trace.empty()) return AddTraceCase(o, bench, plan);
  plan.tokens = tokens;
  plan.cases.push_back(bench);
  return absl::OkStatus();
}

// Sets how long the run lasts and how many requests it has.
absl::Status SetLoad(const BenchOptions& o, BenchPlan& plan) {
  if (!o.rate.empty()) {
    absl::StatusOr<Rate> rate = ParseRate(o.rate);
    if (!rate.ok()) return rate.status();
    plan.rate = *rate;
  }
  const uint64_t streams = plan.peers() * plan.cases[0].threads;
  LoopSpec& loop = plan.loop;
  loop.poisson = o.arrivals == "poisson";
  loop.seed = o.seed;
  loop.duration = o.duration;
  loop.timeline = o.timeline.value_or(0);
  plan.warmup = o.warmup.value_or(o.latency ? 100 : 2) * streams;
  if (plan.workload == Workload::kTrace) {
    plan.warmup = 0;  // the cache must begin empty
    if (!o.has_duration) loop.requests = plan.trace->requests.size();
  } else if (o.iters) {
    loop.requests = *o.iters * streams;
  } else if (o.requests) {
    loop.requests = *o.requests;
    if (*o.requests < streams) {
      return Invalid("--requests ", *o.requests, " is less than one for each of ", streams,
                     " streams (peers by threads)");
    }
  } else if (!o.has_duration) {
    // A fixed time if peers are compared or a rate is held: with a number of requests, the peers
    // that end first would leave the bandwidth to the others.
    if (plan.peers() > 1 || plan.rate) {
      loop.duration = kDefaultRun;
    } else {
      loop.requests = streams * (o.latency ? 10'000 : plan.workload == Workload::kKv ? 16 : 10);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRunTimes(const BenchOptions& o) {
  for (const auto& [name, time] :
       {std::pair("--duration", o.has_duration ? o.duration : Duration(1)),
        {"--timeout", o.timeout}}) {
    if (time <= Duration::zero() || time > kLongestRun) {
      return Invalid(name, " must be above zero and at most an hour");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Rate> ParseRate(std::string_view text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  const bool percent = unit == "%";
  const double most = percent ? 1000 : 1e9;
  if (error != std::errc() || !(unit.empty() || percent) || !(number > 0) || number > most) {
    return Invalid("'", ToAbsl(text),
                   "': write requests a second, such as 2000, or a percentage of "
                   "closed-loop throughput, such as 50%");
  }
  return percent ? Rate{.percent = number} : Rate{.per_second = number};
}

const char* ToString(Workload workload) {
  constexpr std::array kNames = {"raw", "latency", "kv", "trace"};
  return kNames.at(static_cast<size_t>(workload));
}

std::vector<MemoryNeed> BenchPlan::needs(const BenchCase& bench) const {
  BenchCase whole = bench;
  whole.targets.resize(workers.targets);
  std::vector<MemoryNeed> needs = {
      {bench.memory.here, whole.initiator_shape().bytes() * workers.initiators}};
  if (workers.servers.empty()) {
    // Each initiator has a session at each target.
    needs.push_back({bench.memory.there, whole.target_shape().bytes() * peers()});
  }
  return needs;
}

absl::StatusOr<BenchPlan> MakePlan(const BenchOptions& o) {
  if (absl::Status s = CheckNumbers(o); !s.ok()) return s;
  if (absl::Status s = CheckContradictions(o); !s.ok()) return s;
  BenchPlan plan;
  const auto peers = static_cast<uint32_t>(o.peers.value_or(std::max<size_t>(o.servers.size(), 1)));
  const bool fan_out = o.scheme == "onetomany";
  plan.workers = {.servers = o.servers,
                  .targets = fan_out ? peers : 1,
                  .initiators = fan_out ? 1 : peers,
                  .backend = o.backend,
                  .seed = o.seed};
  if (peers * o.threads.value_or(1) > kMaxStreams) {
    return Invalid("--peers times --threads may be at most ", kMaxStreams);
  }
  const bool kv = !o.trace.empty() || !o.model.empty();
  plan.workload = !o.trace.empty()   ? Workload::kTrace
                  : !o.model.empty() ? Workload::kKv
                  : o.latency        ? Workload::kLatency
                                     : Workload::kRaw;
  if (absl::Status s = kv ? AddModelCase(o, plan) : AddRawCases(o, plan); !s.ok()) return s;
  if (absl::Status s = SetLoad(o, plan); !s.ok()) return s;
  for (const BenchCase& bench : plan.cases) {
    BenchCase whole = bench;
    whole.targets.resize(plan.workers.targets);
    if (absl::Status s = CheckCase(whole); !s.ok()) return s;
    plan.workers.gpu_memory |= bench.memory.there.cuda();
    plan.workers.session_bytes =
        std::max(plan.workers.session_bytes, SessionBytes(whole.target_shape()));
  }
  return plan;
}

}  // namespace kvxfer::cli
