// The first round of BenchInitiator, of which every byte is checked at the receiver.

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/initiator.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {

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
  for (uint64_t i = 0; i < streams; ++i) {
    const auto part =
        std::span(ids).subspan(first + i * bench_.request_blocks, bench_.request_blocks);
    const auto content = static_cast<uint32_t>(first_content + i);
    absl::Status status = fill ? cache_.FillRequest(content, part, bench_.seed)
                               : cache_.CheckRequest(content, part, bench_.seed);
    if (!status.ok()) return status;
  }
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
  return LoopResultFromJson(*answer);
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
