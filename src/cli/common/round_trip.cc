#include "src/cli/common/round_trip.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/cli/common/pattern.h"
#include "src/cli/common/session_note.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {
namespace {

// Blocks of the local cache: the one that is written, and the one that the answer is written to.
constexpr uint32_t kSource = 0;
constexpr uint32_t kAnswer = 1;

}  // namespace

absl::StatusOr<RoundTrip> RoundTrip::Open(Channel& channel, Agent& agent, KvCache& cache,
                                          uint64_t size, const MemorySides& memory,
                                          Duration timeout, double* register_ms) {
  absl::StatusOr<KvCache> made =
      KvCache::Create({.pieces = 1, .block_bytes = size, .blocks = 2, .memory = memory.here});
  if (!made.ok()) return made.status();
  cache = std::move(*made);
  const Time before = Now();
  if (auto s = cache.RegisterWith(agent, Access::kRemoteWrite); !s.ok()) return s.status();
  if (register_ms != nullptr) *register_ms = Seconds(Now() - before) * 1e3;
  PagedRegion answer = cache.regions()[0];
  answer.base += kAnswer * answer.stride;
  answer.count = 1;
  absl::StatusOr<TargetSession> session = TargetSession::Open(
      channel, agent,
      {.shape = {.pieces = 1, .block_bytes = size, .blocks = 1, .memory = memory.there},
       .answer = {answer}},
      timeout);
  if (!session.ok()) return session.status();
  RoundTrip trip;
  trip.agent_ = &agent;
  trip.cache_ = &cache;
  trip.timeout_ = timeout;
  trip.session_ = std::move(*session);
  return trip;
}

absl::Status RoundTrip::Once() {
  constexpr uint32_t kThere = 0;
  TransferOptions options;
  options.notification =
      SessionNote{
          .session = session_.id(), .sequence = ++sequence_, .posted_ns = MonotonicNanoseconds()}
          .Encode();
  options.deadline = timeout_;
  const absl::StatusOr<Transfer> transfer = agent_->Write(session_.peer(),
                                                          PagedBlocks{.local = cache_->regions(),
                                                                      .remote = session_.regions(),
                                                                      .local_ids = {&kSource, 1},
                                                                      .remote_ids = {&kThere, 1}},
                                                          options);
  if (!transfer.ok()) return transfer.status();
  return WaitAnswer(*transfer);
}

// A transfer that fails does not wake a thread that waits for a notification. So this looks at the
// transfer in between: after a failure no answer can come, and its status says more than "no
// answer".
absl::Status RoundTrip::WaitAnswer(const Transfer& transfer) {
  constexpr Duration kLook = std::chrono::milliseconds(50);
  for (const Time deadline = Now() + timeout_;;) {
    const Duration left = std::max(deadline - Now(), Duration::zero());
    const absl::StatusOr<Notification> answer = agent_->WaitNotification(std::min(left, kLook));
    if (answer.ok()) {
      const std::optional<SessionNote> note = SessionNote::Decode(answer->payload);
      if (note && note->sequence == sequence_) return absl::OkStatus();
      return absl::InternalError("the answer belongs to another write");
    }
    if (!absl::IsDeadlineExceeded(answer.status())) return answer.status();
    if (absl::Status failed = transfer.status(); !failed.ok()) return failed;
    if (absl::Status gone = CheckPeer(); !gone.ok()) return gone;
    if (left <= kLook) {
      return absl::DeadlineExceededError(absl::StrCat("no answer from ", session_.peer(),
                                                      " within ", FormatDuration(timeout_, " ")));
    }
  }
}

// A broken connection may be made again, and transfers in flight go on then.
absl::Status RoundTrip::CheckPeer() {
  constexpr Duration kPatience = std::chrono::seconds(1);
  while (const std::optional<PeerEvent> event = agent_->PollPeerEvent()) {
    if (event->peer != session_.peer()) continue;
    if (event->kind == PeerEventKind::kLost) {
      lost_since_ = Now();
      lost_ = absl::UnavailableError(
          absl::StrCat("peer ", event->peer, " was lost: ", event->cause.message()));
    } else if (event->kind != PeerEventKind::kSuspect) {
      lost_ = absl::OkStatus();
    }
  }
  return lost_.ok() || Now() - lost_since_ < kPatience ? absl::OkStatus() : lost_;
}

absl::Status RoundTrip::Verify(double* took_us) {
  const uint64_t seed = PatternSeed({session_.id(), sequence_});
  absl::Status filled = cache_->FillBlock(0, kSource, seed);
  filled.Update(cache_->FillBlock(0, kAnswer, seed + 1));
  if (!filled.ok()) return filled;
  const Time start = Now();
  if (absl::Status s = Once(); !s.ok()) return s;
  *took_us = Seconds(Now() - start) * 1e6;
  const absl::StatusOr<std::optional<size_t>> wrong = cache_->FindInBlock(0, kAnswer, seed);
  if (!wrong.ok()) return wrong.status();
  if (!*wrong) return cache_->CheckGuards();
  return absl::DataLossError(
      absl::StrCat("byte ", **wrong, " of the answer differs from what was written"));
}

}  // namespace kvxfer::cli
