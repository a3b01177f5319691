#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/units.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::cli {
namespace {

// Blocks of the local cache: the one that is written, and the one that the answer is written to.
constexpr uint32_t kSource = 0;
constexpr uint32_t kAnswer = 1;

}  // namespace

template <typename Io>
void Fields(Io& io, JsonRef<Io, TargetReport> report) {
  io("process", report.process);
  io("cpu_seconds", report.cpu_seconds);
  io("rss_bytes", report.rss_bytes);
  io("notifications", report.notifications);
  io("notified", report.notified);
  io("arrivals", report.arrivals);
}

Json ToJson(const TargetReport& report) { return FieldsToJson(report); }

absl::StatusOr<TargetSession> TargetSession::Open(Channel& channel, Agent& agent,
                                                  const SessionRequest& request, Duration timeout) {
  // Now so that the service knows this agent; again below, so that this agent knows its regions.
  if (absl::StatusOr<std::string> s = Introduce(channel, agent); !s.ok()) return s.status();
  Json prepare = {{"type", "prepare"},
                  {"pieces", request.shape.pieces},
                  {"block_bytes", request.shape.block_bytes},
                  {"blocks", request.shape.blocks},
                  {"memory", request.shape.memory.ToString()}};
  if (!request.answer.empty()) prepare["answer"] = ToJson(request.answer);
  if (!request.drive.empty()) prepare["drive"] = ToJson(request.drive);
  const absl::StatusOr<Json> ready = channel.Call(prepare, timeout);
  if (!ready.ok()) return ready.status();
  const absl::StatusOr<uint64_t> id = GetUint(*ready, "session");
  absl::StatusOr<std::vector<PagedRegion>> regions = GetRegions(*ready, "regions");
  if (!id.ok()) return id.status();
  if (!regions.ok()) return regions.status();
  if (regions->size() != request.shape.pieces) {
    return absl::InternalError("the target prepared other regions than requested");
  }
  absl::StatusOr<std::string> peer = Introduce(channel, agent);
  if (!peer.ok()) return peer.status();
  TargetSession session;
  session.channel_ = &channel;
  session.peer_ = std::move(*peer);
  session.id_ = *id;
  session.regions_ = std::move(*regions);
  return session;
}

absl::StatusOr<TargetReport> TargetSession::Report(uint64_t notifications, Duration timeout) const {
  TargetReport sum;
  for (const Time end = Now() + timeout;;) {
    const absl::StatusOr<Json> answer = channel_->Call({{"type", "report"}}, timeout);
    if (!answer.ok()) return answer.status();
    absl::StatusOr<TargetReport> report = FromJson<TargetReport>(*answer);
    if (!report.ok()) return report.status();
    report->notifications += sum.notifications;
    report->notified.Merge(sum.notified);
    report->arrivals.insert(report->arrivals.end(), sum.arrivals.begin(), sum.arrivals.end());
    sum = std::move(*report);
    if (sum.notifications == notifications) return sum;
    if (sum.notifications > notifications || Now() > end) {
      return absl::DataLossError(absl::StrCat("the target was notified ", sum.notifications,
                                              " times instead of ", notifications));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, SessionNote> note) {
  io.Int("session", note.session);
  io.Int("sequence", note.sequence);
  io.Int("posted_ns", note.posted_ns);
  io.Bool("by_message", note.by_message);
}

std::string SessionNote::Encode() const { return wire::Encode(*this); }

std::optional<SessionNote> SessionNote::Decode(std::string_view payload) {
  return wire::TryDecode<SessionNote>(payload);
}

absl::StatusOr<RoundTrip> RoundTrip::Open(Channel& channel, Agent& agent, KvCache& cache,
                                          uint64_t size, const MemorySides& memory,
                                          Duration timeout, double* register_ms) {
  const KvCacheShape shape{.pieces = 1, .block_bytes = size, .blocks = 2, .memory = memory.here};
  if (absl::Status s = Into(cache, KvCache::Create(shape)); !s.ok()) return s;
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

absl::Status RoundTrip::Once(bool by_message) {
  constexpr uint32_t kThere = 0;
  TransferOptions options;
  options.notification = SessionNote{.session = session_.id(),
                                     .sequence = ++sequence_,
                                     .posted_ns = MonotonicNanoseconds(),
                                     .by_message = by_message}
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
    if (!IsTimedOut(answer.status())) return answer.status();
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
