#include "src/cli/bench/workers.h"

#include <poll.h>

#include <algorithm>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/stats.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kSetUp = std::chrono::minutes(10);  // longest time to set up or to end
// Time for the start to reach the threads, or the processes, that begin together.
constexpr int64_t kHeadStart = 5'000'000;
constexpr int64_t kWorkersHeadStart = 30'000'000;

uint32_t Workers(uint32_t parts) { return std::min(parts, kMaxWorkers); }

// How many of `parts` things, which `workers` share, belong to worker `i`.
uint32_t PartsOf(uint32_t parts, uint32_t workers, uint32_t i) {
  return parts / workers + (i < parts % workers ? 1 : 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<BenchWorkers>> BenchWorkers::Start(const BenchWorkersSpec& spec) {
  std::unique_ptr<BenchWorkers> workers(new BenchWorkers(spec));
  if (spec.servers.empty()) {
    if (absl::Status s = workers->StartTargets(); !s.ok()) return workers->Explain(s);
  }
  if (spec.initiators > 1) {
    if (absl::Status s = workers->StartInitiators(); !s.ok()) return workers->Explain(s);
  }
  return workers;
}

absl::Status BenchWorkers::StartTargets() {
  const uint32_t workers = Workers(spec_.targets);
  for (uint32_t i = 0; i < workers; ++i) {
    absl::StatusOr<WorkerProcess> worker = WorkerProcess::Start(
        "bench-worker", workers == 1 ? "the target process" : "a target process");
    if (!worker.ok()) return worker.status();
    target_workers_.push_back(std::move(*worker));
    const Json role = {{"role", "targets"},
                       {"count", PartsOf(spec_.targets, workers, i)},
                       {"backend", spec_.backend},
                       {"seed", spec_.seed + 1 + i},
                       {"gpu_memory", spec_.gpu_memory},
                       {"session_bytes", spec_.session_bytes}};
    const absl::StatusOr<Json> answer = target_workers_.back().channel().Call(role, kSetUp);
    if (!answer.ok()) return answer.status();
    for (const Json& address : answer->value("addresses", Json::array())) {
      if (address.is_string()) targets_.push_back(address.get<std::string>());
    }
  }
  if (targets_.size() == spec_.targets) return absl::OkStatus();
  return absl::InternalError("a target process does not report its address");
}

absl::Status BenchWorkers::StartInitiators() {
  const uint32_t workers = Workers(spec_.initiators);
  for (uint32_t i = 0; i < workers; ++i) {
    absl::StatusOr<WorkerProcess> worker = WorkerProcess::Start(
        "bench-worker", absl::StrCat("process ", i + 1, " of ", workers, " with initiators"));
    if (!worker.ok()) return worker.status();
    initiator_workers_.push_back(std::move(*worker));
    const Json role = {{"role", "initiators"}};
    if (absl::Status s = initiator_workers_.back().channel().Send(role); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The answer of a process, until it has come.
struct BenchWorkers::Awaited {
  std::optional<Json> answer{};
  uint64_t moved = 0;  // requests, in its last report
  Duration silent{};
};

absl::Status BenchWorkers::Hear(size_t worker, bool spoke, Duration passed, Awaited& awaited) {
  WorkerProcess& process = initiator_workers_[worker];
  if (!spoke) {
    awaited.silent += passed;
    if (awaited.silent < kLongestSilence) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("the run broke off: ", process.channel().peer(), " (pid ", process.pid(),
                     ") has been silent for ",
                     std::chrono::duration_cast<std::chrono::seconds>(awaited.silent).count(),
                     " s; is it stopped?"));
  }
  awaited.silent = {};
  absl::StatusOr<Json> word = process.channel().ReceiveAnswer(kLongestSilence);
  if (!word.ok()) return word.status();
  if (const absl::StatusOr<uint64_t> moved = GetUint(*word, "moved"); moved.ok()) {
    awaited.moved = *moved;
  } else {
    awaited.answer = std::move(*word);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Json>> BenchWorkers::CallAll(const std::vector<Json>& messages,
                                                        Duration timeout,
                                                        const std::function<void(uint64_t)>& tick) {
  for (size_t i = 0; i < messages.size(); ++i) {
    absl::Status s = initiator_workers_[i].channel().Send(messages[i]);
    if (!s.ok()) return s;
  }
  std::vector<Awaited> all(messages.size());
  std::vector<pollfd> waits;
  for (WorkerProcess& worker : initiator_workers_) {
    waits.push_back({.fd = worker.channel().fd(), .events = POLLIN, .revents = 0});
  }
  size_t waiting = all.size();
  Time last = Now();
  for (const Time end = last + timeout; waiting > 0;) {
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kTick).count();
    poll(waits.data(), waits.size(), static_cast<int>(limit));
    // A longer time means that this process was stopped, and not that the others were silent.
    const Duration passed = std::min<Duration>(Now() - last, 2 * kTick);
    last = Now();
    uint64_t moved = 0;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].fd >= 0) {
        if (auto s = Hear(i, waits[i].revents != 0, passed, all[i]); !s.ok()) return s;
        if (all[i].answer) {
          waits[i].fd = -1;  // poll ignores it
          --waiting;
        }
      }
      moved += all[i].moved;
    }
    if (tick) tick(moved);
    if (waiting > 0 && last > end) {
      return absl::DeadlineExceededError("the processes of initiators do not end");
    }
  }
  std::vector<Json> answers;
  answers.reserve(all.size());
  for (Awaited& awaited : all) answers.push_back(*std::move(awaited.answer));
  return answers;
}

absl::StatusOr<Opened> BenchWorkers::Open(const BenchCase& bench) {
  if (initiator_workers_.empty()) return here_.Open(bench, 0, 1);
  std::vector<Json> messages;
  uint32_t first = 0;
  const auto workers = static_cast<uint32_t>(initiator_workers_.size());
  for (uint32_t i = 0; i < workers; ++i) {
    const uint32_t count = PartsOf(spec_.initiators, workers, i);
    messages.push_back(
        {{"type", "open"}, {"case", ToJson(bench)}, {"first", first}, {"count", count}});
    first += count;
  }
  const absl::StatusOr<std::vector<Json>> answers = CallAll(messages, kSetUp, nullptr);
  if (!answers.ok()) return answers.status();
  Opened all;
  for (const Json& answer : *answers) {
    const absl::StatusOr<Opened> opened = FromJson<Opened>(answer);
    if (!opened.ok()) return opened.status();
    all.Merge(*opened);
  }
  return all;
}

absl::StatusOr<Ran> BenchWorkers::Run(LoopSpec spec, const TraceSpec* trace,
                                      const std::function<void(uint64_t)>& tick) {
  if (initiator_workers_.empty()) {
    std::atomic<uint64_t> moved{0};
    spec.start_ns = MonotonicNanoseconds() + kHeadStart;
    auto run = std::async(std::launch::async,
                          [&] { return here_.Run(spec, spec_.initiators, trace, &moved); });
    while (run.wait_for(kTick) != std::future_status::ready) tick(moved.load());
    return run.get();
  }
  spec.start_ns = MonotonicNanoseconds() + kWorkersHeadStart;
  const Json message = {{"type", "run"}, {"loop", ToJson(spec)}, {"total", spec_.initiators}};
  const std::vector<Json> messages(initiator_workers_.size(), message);
  const absl::StatusOr<std::vector<Json>> answers = CallAll(messages, 2 * kLongestRun, tick);
  if (!answers.ok()) return answers.status();
  Ran all;
  for (const Json& answer : *answers) {
    const absl::StatusOr<Ran> ran = FromJson<Ran>(answer);
    if (!ran.ok()) return ran.status();
    all.Merge(*ran);
  }
  return all;
}

absl::Status BenchWorkers::Close() {
  here_.Close();
  const std::vector<Json> messages(initiator_workers_.size(), Json{{"type", "close"}});
  return CallAll(messages, kSetUp, nullptr).status();
}

absl::Status BenchWorkers::Explain(absl::Status status) {
  if (!absl::IsUnavailable(status) && !absl::IsAborted(status)) return status;
  std::vector<WorkerProcess*> workers;
  for (auto* some : {&target_workers_, &initiator_workers_}) {
    for (WorkerProcess& worker : *some) workers.push_back(&worker);
  }
  const absl::Status ended = FindEnded(workers);
  return ended.ok() ? status : BrokenOff(ended);
}

}  // namespace kvxfer::cli
