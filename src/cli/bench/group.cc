
#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

// Several initiators may report on the same process, each from its own start to its own end.
void AddUse(const std::string& process, const ProcessUse& use,
            std::map<std::string, ProcessUse>& uses) {
  const auto [it, fresh] = uses.try_emplace(process, use);
  if (fresh) return;
  it->second.cpu_before = std::min(it->second.cpu_before, use.cpu_before);
  it->second.cpu_after = std::max(it->second.cpu_after, use.cpu_after);
  it->second.rss_bytes = std::max(it->second.rss_bytes, use.rss_bytes);
}

}  // namespace

void Opened::Merge(const Opened& other) {
  if (path.empty()) {
    path = other.path;
    backend = other.backend;
  }
  register_ms = std::max(register_ms, other.register_ms);
  first_transfer_us = std::max(first_transfer_us, other.first_transfer_us);
}

void Ran::Merge(const Ran& other) {
  LoopResult::Append(other);
  cpu_seconds += other.cpu_seconds;
  rss_bytes += other.rss_bytes;
  tokens += other.tokens;
  hit_tokens += other.hit_tokens;
  for (const auto& [process, use] : other.processes) AddUse(process, use, processes);
}

LoopSpec ShareOf(const LoopSpec& whole, uint32_t index, uint32_t total) {
  LoopSpec share = whole;
  share.requests = whole.requests / total + (index < whole.requests % total ? 1 : 0);
  share.rate = whole.rate / total;
  share.timeline = whole.timeline / total + (index < whole.timeline % total ? 1 : 0);
  share.phase = static_cast<double>(index) / total;
  share.seed = whole.seed + index;
  return share;
}

absl::StatusOr<Opened> InitiatorGroup::Open(const BenchCase& bench, uint32_t first,
                                            uint32_t count) {
  Close();
  first_ = first;
  Opened opened;
  for (uint32_t i = 0; i < count; ++i) {
    auto initiator = BenchInitiator::Open(bench, first + i);
    if (!initiator.ok()) return initiator.status();
    // One after the other, so that nothing else of this process disturbs the first transfer's time.
    if (absl::Status s = (*initiator)->Verify(); !s.ok()) return s;
    opened.Merge((*initiator)->opened());
    initiators_.push_back(std::move(*initiator));
  }
  return opened;
}

absl::StatusOr<Ran> InitiatorGroup::Run(const LoopSpec& whole, uint32_t total,
                                        const TraceSpec* trace, std::atomic<uint64_t>* moved) {
  std::optional<TraceSource> source;
  if (trace != nullptr) {
    source.emplace(*trace, whole, initiators_[0]->cache().regions(), initiators_[0]->link().remote,
                   initiators_[0]->threads());
  }
  const double cpu_before = CpuSeconds();
  std::vector<absl::StatusOr<BenchInitiator::Ran>> parts(initiators_.size());
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < initiators_.size(); ++i) {
      threads.emplace_back([&, i] {
        const LoopSpec share = ShareOf(whole, first_ + static_cast<uint32_t>(i), total);
        parts[i] = initiators_[i]->Run(share, source ? &*source : nullptr, moved);
      });
    }
  }
  Ran ran;
  ran.cpu_seconds = CpuSeconds() - cpu_before;
  ran.rss_bytes = RssBytes();
  for (absl::StatusOr<BenchInitiator::Ran>& part : parts) {
    if (!part.ok()) return part.status();
    if (total > 1) {
      part->result.targets = {part->result.all};
      const auto number = first_ + static_cast<uint32_t>(&part - parts.data());
      for (TransferTimes& times : part->result.timeline) times.peer = number;
    }
    ran.Append(part->result);
    for (size_t i = 0; i < part->after.size(); ++i) {
      AddUse(part->after[i].process,
             {.cpu_before = part->before[i].cpu_seconds,
              .cpu_after = part->after[i].cpu_seconds,
              .rss_bytes = part->after[i].rss_bytes},
             ran.processes);
    }
  }
  if (source) {
    ran.tokens = source->tokens();
    ran.hit_tokens = source->hit_tokens();
  }
  return ran;
}

absl::Status BenchInitiator::Verify() { return BrokenOff(VerifyAll()); }

absl::Status BenchInitiator::VerifyAll() {
  if (trip_) return trip_->Verify(&first_transfer_us_);
  if (absl::Status s = VerifyDirection(/*forward=*/true); !s.ok()) return s;
  if (!bench_.bidirectional) return absl::OkStatus();
  return VerifyDirection(/*forward=*/false);
}

// The receiving side starts with zeros, so that old correct bytes cannot pass.
absl::Status BenchInitiator::VerifyDirection(bool forward) {
  const bool into_targets = forward == bench_.write;
  if (absl::Status s = Content(/*fill=*/true, !into_targets, forward); !s.ok()) return s;
  if (absl::Status s = Clear(into_targets); !s.ok()) return s;
  if (absl::Status s = MoveOnce(forward); !s.ok()) return s;
  return Content(/*fill=*/false, into_targets, forward);
}

absl::Status BenchInitiator::Clear(bool at_targets) {
  if (!at_targets) {
    if (absl::Status s = cache_.Clear(); !s.ok()) return s;
    return agent_->Metadata().status();  // orders the zeros before later transfers
  }
  for (Channel& channel : channels_) {
    const absl::StatusOr<Json> done = channel.Call({{"type", "clear"}}, bench_.timeout);
    if (!done.ok()) return done.status();
  }
  return absl::OkStatus();
}

// Fills or checks the blocks that the streams of one direction move. Content is numbered across all
// initiators of the run.
absl::Status BenchInitiator::Content(bool fill, bool at_targets, bool forward) {
  const uint64_t streams = bench_.streams();
  const uint64_t first_content = index_ * streams;
  if (at_targets) {
    uint64_t content = first_content;
    for (Channel& channel : channels_) {
      const Json request = {{"type", fill ? "fill" : "check"},
                            {"first", forward ? 0 : bench_.target_share()},
                            {"streams", bench_.threads},
                            {"request_blocks", bench_.request_blocks},
                            {"content", content},
                            {"seed", bench_.seed}};
      content += bench_.threads;
      if (auto s = channel.Call(request, bench_.timeout); !s.ok()) return s.status();
    }
    return absl::OkStatus();
  }
  const std::vector<uint32_t> ids = Permutation(cache_.shape().blocks, InitiatorSeed(bench_.seed));
  const uint64_t first = forward ? 0 : streams * bench_.request_blocks;
  const auto part = std::span(ids).subspan(first, streams * bench_.request_blocks);
  absl::Status status =
      cache_.FillOrCheck(fill, static_cast<uint32_t>(first_content), streams, part, bench_.seed);
  if (!status.ok()) return status;
  return fill ? agent_->Metadata().status() : cache_.CheckGuards();
}

absl::Status BenchInitiator::MoveOnce(bool forward) {
  if (!forward) {
    notified_.store(0);
    const absl::StatusOr<LoopResult> back = DriveBack({.requests = bench_.threads});
    if (!back.ok()) return back.status();
    return AwaitNotified(bench_.threads);
  }
  const Mover mover(*agent_, links_, bench_.write, bench_.timeout);
  std::vector<Tally> moved(links_.size());
  for (size_t stream = 0; stream < requests_->streams(); ++stream) {
    const Time start = Now();
    const Request request = requests_->Of(stream, 0);
    if (absl::Status s = mover.Move(stream, request); !s.ok()) return s;
    if (stream == 0) first_transfer_us_ = Seconds(Now() - start) * 1e6;
    ++moved[request.target].requests;
  }
  return Report(moved).status();
}

absl::StatusOr<LoopResult> BenchInitiator::DriveBack(const LoopSpec& spec) {
  const uint64_t share = bench_.target_share();
  const Json request = {{"type", "drive"},
                        {"op", bench_.write ? "write" : "read"},
                        {"threads", bench_.threads},
                        {"request_blocks", bench_.request_blocks},
                        {"first", share},
                        {"remote_first", share},
                        {"seed", bench_.seed},
                        {"timeout_ns", static_cast<uint64_t>(bench_.timeout.count())},
                        {"loop", ToJson(spec)}};
  const Duration most = spec.requests == 0 ? spec.duration + bench_.timeout : kLongestRun;
  const absl::StatusOr<Json> answer = channels_.front().Call(request, most);
  if (!answer.ok()) return answer.status();
  return FromJson<LoopResult>(*answer);
}

absl::Status BenchInitiator::AwaitNotified(uint64_t expected) const {
  for (const Time end = Now() + bench_.timeout; notified_.load() != expected;) {
    if (notified_.load() > expected || Now() > end) {
      return absl::DataLossError(absl::StrCat("the initiator was notified ", notified_.load(),
                                              " times instead of ", expected));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
