#include "src/transport/ring_pair.h"

#include <new>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/transport/host/ring_file.h"

namespace kvxfer::net {
namespace {

constexpr size_t kConnecting = 0;  // index of the ring that the connecting side sends through
constexpr size_t kAccepting = 1;
// A message of more bytes fills a small ring by itself.
constexpr size_t kFitsSmall = 4 * SmallRing::kMaxRecordBytes;
// A message that finds the ring full waits until the peer has read some; it happens to any sender
// whose peer sleeps. This many make it a habit.
constexpr uint32_t kFullBeforeGrowth = 4;

// The kernel gives zeroed memory, which is a valid initial ring.
template <typename Memory>
Memory* RingsIn(const Mapping& mapping) {
  return std::launder(reinterpret_cast<Memory*>(mapping.data()));
}

}  // namespace

absl::Status RingPair::Map(int file, size_t sends_through) {
  absl::StatusOr<Mapping> mapping = MapRingFile(file, kSmallBytes);
  if (!mapping.ok()) return mapping.status();
  first_ = *std::move(mapping);
  auto* const rings = RingsIn<SmallRing>(first_);
  out_ = GrowingSender(rings[sends_through].ring());
  in_ = GrowingReceiver(rings[1 - sends_through].ring());
  return absl::OkStatus();
}

absl::Status RingPair::Offer(int bell) {
  const absl::StatusOr<OwnFd> file = MakeRingFile(kSmallBytes);
  if (!file.ok()) return file.status();
  if (absl::Status mapped = Map(file->get(), kConnecting); !mapped.ok()) return mapped;
  socket_->PassRingFrame(RingFrame::kRings, file->get());
  socket_->PassRingFrame(RingFrame::kBell, bell);
  return absl::OkStatus();
}

absl::Status RingPair::Take(const OwnFd& file, int bell) {
  if (mapped()) return absl::InvalidArgumentError("the peer offers rings twice");
  if (!file.valid()) return absl::ResourceExhaustedError("no descriptor left to pass the rings");
  if (absl::Status good = CheckRingFile(file.get(), kSmallBytes); !good.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("the peer's rings: ", good.message()));
  }
  if (absl::Status mapped = Map(file.get(), kAccepting); !mapped.ok()) return mapped;
  socket_->PassRingFrame(RingFrame::kBell, bell);
  return absl::OkStatus();
}

absl::Status RingPair::TakeBell(OwnFd bell) {
  // Without the bell a sleeper could not be woken, so the ring is not used. A bell that comes later
  // only wakes.
  if (!mapped() || !bell.valid()) return absl::OkStatus();
  if (ready()) return absl::InvalidArgumentError("the peer offers a bell twice");
  if (!RingsWithoutHarm(bell.get())) {
    return absl::InvalidArgumentError("the peer's bell is no eventfd, or could block");
  }
  bell_ = std::move(bell);
  return absl::OkStatus();
}

absl::Status RingPair::TakeNone() {
  if (ready()) return absl::InvalidArgumentError("the peer gives up its rings too late");
  Close();
  return absl::OkStatus();
}

absl::Status RingPair::TakeGrowth(const OwnFd& file) {
  if (!mapped() || in_.growth() != RingGrowth::kSmall) {
    return absl::InvalidArgumentError("the peer makes its ring larger again, or has none");
  }
  absl::StatusOr<Mapping> mapping = absl::ResourceExhaustedError("no descriptor left");
  if (file.valid()) {
    if (absl::Status good = CheckRingFile(file.get(), sizeof(LargeRing)); !good.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("the peer's larger ring: ", good.message()));
    }
    mapping = MapRingFile(file.get(), sizeof(LargeRing));
  }
  if (!mapping.ok()) {
    in_.Refuse();
    socket_->PassRingFrame(RingFrame::kNotGrown, -1);
    return absl::OkStatus();
  }
  in_large_ = *std::move(mapping);
  in_.Offer(RingsIn<LargeRing>(in_large_)->ring());
  return absl::OkStatus();
}

absl::Status RingPair::TakeNotGrown(std::optional<uint64_t> after) {
  std::deque<Waiting> back;
  const bool good = out_.TakeBack([&](RingRecord::Kind kind, std::string body) {
    back.push_back({.more = kind == RingRecord::Kind::kMore, .body = std::move(body)});
  });
  if (!good) return absl::InvalidArgumentError("the peer gives up a larger ring that it uses");
  // What waits of a message that has gone in part follows that part.
  if (!waiting_.empty()) waiting_.front().body.erase(0, std::exchange(front_sent_, 0));
  for (; !back.empty(); back.pop_back()) {
    queued_bytes_ += back.back().body.size();
    waiting_.push_front(std::move(back.back()));
  }
  if (after) Flush(*after);
  return absl::OkStatus();
}

bool RingPair::Grow() {
  if (out_.growth() != RingGrowth::kSmall) return false;
  const absl::StatusOr<OwnFd> file = MakeRingFile(sizeof(LargeRing));
  absl::StatusOr<Mapping> mapping =
      file.ok() ? MapRingFile(file->get(), sizeof(LargeRing)) : file.status();
  if (!mapping.ok()) {
    Log(LogLevel::kDebug, "a ring of messages stays small: {}", ToStd(mapping.status().message()));
    out_.Refuse();
    return false;
  }
  out_large_ = *std::move(mapping);
  out_.Offer(RingsIn<LargeRing>(out_large_)->ring());
  socket_->PassRingFrame(RingFrame::kGrow, file->get());
  return true;
}

void RingPair::Send(std::span<const std::byte> message, std::optional<uint64_t> after) {
  if (message.size() > kFitsSmall) Grow();
  std::string_view rest(reinterpret_cast<const char*>(message.data()), message.size());
  // Nothing may overtake what waits.
  while (waiting_.empty() && after) {
    const std::string_view part = rest.substr(0, out_.max_record());
    if (TryPush(*after, part.size() < rest.size(), part)) {
      rest.remove_prefix(part.size());
      if (rest.empty()) return;
    } else if (++times_full_ != kFullBeforeGrowth || !Grow()) {
      break;
    }
  }
  waiting_.push_back({.body = std::string(rest)});
  queued_bytes_ += rest.size();
}

bool RingPair::TryPush(uint64_t after, bool more, std::string_view body) {
  if (!out_.Push(after, more ? RingRecord::Kind::kMore : RingRecord::Kind::kLast, body)) {
    return false;
  }
  if (out_.BellDue()) RingBell(bell_.get());
  return true;
}

void RingPair::Flush(uint64_t after) {
  while (!waiting_.empty()) {
    const Waiting& front = waiting_.front();
    const std::string_view rest = std::string_view(front.body).substr(front_sent_);
    const std::string_view part = rest.substr(0, out_.max_record());
    const bool whole = part.size() == rest.size();
    if (!TryPush(after, front.more || !whole, part)) return;
    queued_bytes_ -= part.size();
    front_sent_ += part.size();
    if (!whole) continue;
    waiting_.pop_front();
    front_sent_ = 0;
  }
}

void RingPair::TakeWaiting(size_t most, absl::FunctionRef<void(const Part&)> take) {
  for (; !waiting_.empty(); waiting_.pop_front()) {
    std::string_view rest = std::string_view(waiting_.front().body).substr(front_sent_);
    front_sent_ = 0;
    do {
      const std::string_view body = rest.substr(0, most);
      rest.remove_prefix(body.size());
      take({.more = waiting_.front().more || !rest.empty(), .body = body});
    } while (!rest.empty());
  }
  queued_bytes_ = 0;
}

void RingPair::Discard() {
  waiting_.clear();
  front_sent_ = 0;
  queued_bytes_ = 0;
}

// A sender whose bell could not be passed, for lack of a descriptor, is woken over the socket.
void RingPair::WakeSender() {
  if (ready()) return RingBell(bell_.get());
  socket_->PassRingFrame(RingFrame::kBell, -1);
}

RingPair::Got RingPair::Receive(uint64_t received, std::span<char> buffer, Part& part) {
  if (!mapped() || distrusted_) return Got::kNothing;
  RingRecord record;
  switch (in_.Peek(record)) {
    case GrowingReceiver::Got::kNothing:
      return Got::kNothing;
    case GrowingReceiver::Got::kEarly:
      return Got::kBehind;
    case GrowingReceiver::Got::kDamaged:
      Distrust();
      return Got::kDamaged;
    case GrowingReceiver::Got::kRecord:
      break;
  }
  if (record.after > received) return Got::kBehind;
  in_.Pop(record, std::as_writable_bytes(buffer));
  if (in_.BellDue()) WakeSender();
  part.more = record.kind == RingRecord::Kind::kMore;
  part.body = {buffer.data(), record.bytes};
  return Got::kPart;
}

void RingPair::Close() {
  bell_.Reset();
  first_ = Mapping();
  out_large_ = Mapping();
  in_large_ = Mapping();
  Discard();
}

}  // namespace kvxfer::net
