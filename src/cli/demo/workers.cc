#include "src/cli/demo/workers.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

// Longer than a rank's own time-out, which may be 10 % late.
Duration WithGrace(Duration timeout) { return timeout + timeout / 4 + std::chrono::seconds(2); }

}  // namespace

absl::StatusOr<DemoWorkers> DemoWorkers::Start(std::span<const DemoShard> prefill,
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

absl::StatusOr<std::vector<Json>> DemoWorkers::Call(const Json& to_prefill, const Json& to_decode) {
  std::vector<Json> messages(prefill_, to_prefill);
  messages.resize(workers_.size(), to_decode);
  return CallEach(messages);
}

absl::StatusOr<std::vector<Json>> DemoWorkers::CallEach(const std::vector<Json>& messages) {
  absl::StatusOr<std::vector<Json>> answers = Collect(messages);
  if (!absl::IsUnavailable(answers.status()) && !absl::IsAborted(answers.status())) return answers;
  std::vector<WorkerProcess*> workers;
  for (WorkerProcess& worker : workers_) workers.push_back(&worker);
  absl::Status ended = FindEnded(workers);
  if (!ended.ok()) return ended;
  return answers;
}

absl::StatusOr<std::vector<Json>> DemoWorkers::Collect(const std::vector<Json>& messages) {
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
      absl::StatusOr<Json> answer = workers_[i].channel().ReceiveAnswer(timeout_);
      if (!answer.ok()) return answer.status();
      answers[i] = std::move(*answer);
      waits[i].fd = -1;
    }
  }
}

absl::Status DemoWorkers::Leave() {
  for (WorkerProcess& worker : workers_) {
    if (auto s = worker.channel().Send({{"type", "leave"}}, timeout_); !s.ok()) return s;
  }
  for (WorkerProcess& worker : workers_) {
    if (absl::Status s = worker.Join(timeout_); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
