#include "src/core/protocol/reliable_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

const std::string* ReliableChannel::NextToSend() {
  if (next_ == kept_.size()) return nullptr;
  std::string& message = kept_[next_].message;
  // The ack is written at the last moment, so that every message acknowledges all that was
  // received.
  PatchAck(message, received_);
  return &message;
}

void ReliableChannel::MessageSent() {
  if (next_ == kept_.size()) return;
  // A replay sends lower sequences again; it must not lower what the peer may acknowledge.
  if (kept_[next_].sequence > highest_sent_) highest_sent_ = kept_[next_].sequence;
  ++next_;
  OnAckSent();
}

bool ReliableChannel::AllToSend(absl::FunctionRef<bool(FrameType)> which) const {
  return std::all_of(
      kept_.begin() + static_cast<std::ptrdiff_t>(next_), kept_.end(),
      [&](const Kept& kept) { return which(static_cast<FrameType>(kept.message.front())); });
}

size_t ReliableChannel::GatherToSend(size_t max_bytes, std::string& out) {
  size_t count = 0;
  size_t bytes = 0;
  while (next_ + count < kept_.size() && bytes + kept_[next_ + count].message.size() <= max_bytes) {
    bytes += kept_[next_ + count++].message.size();
  }
  if (count < 2) return 0;
  out.clear();
  for (size_t i = 0; i < count; ++i) {
    PatchAck(kept_[next_ + i].message, received_);
    out += kept_[next_ + i].message;
  }
  return count;
}

absl::Status ReliableChannel::OnAck(uint64_t ack) {
  if (ack > highest_sent_) {
    return absl::InvalidArgumentError(absl::StrCat("the peer acknowledges frame ", ack,
                                                   ", but only ", highest_sent_,
                                                   " were sent; the session must be reset"));
  }
  while (!kept_.empty() && kept_.front().sequence <= ack) {
    std::string& message = kept_.front().message;
    kept_bytes_ -= message.size();
    if (message.capacity() <= kMaxSpareBytes) spare_ = std::move(message);
    kept_.pop_front();
    // A frame may be acknowledged before it was sent again on this connection: its first copy
    // arrived.
    if (next_ > 0) --next_;
  }
  return absl::OkStatus();
}

void ReliableChannel::Rewind() {
  next_ = 0;
  ack_sent_ = 0;
}

absl::Status ReliableChannel::OnFrame(const Envelope& envelope,
                                      absl::FunctionRef<absl::Status(const Incoming&)> take) {
  const uint64_t sequence = envelope.sequence;
  if (sequence == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of type ", static_cast<int>(envelope.type),
                     " came without a number; the session must be reset"));
  }
  // A duplicate, e.g. from a replay.
  if (sequence <= received_) return absl::OkStatus();
  if (sequence - received_ > kMaxGap) {
    return absl::ResourceExhaustedError(
        absl::StrCat("frame ", sequence, " is more than ", kMaxGap, " ahead of frame ", received_,
                     ", the last in order; the connection must be made anew"));
  }
  // A gap: messages of different backends can overtake each other. Keep the frame until the gap
  // closes; the bounds protect against a peer that never closes it.
  if (sequence != received_ + 1) {
    const size_t bytes = envelope.body.size();
    if (ahead_bytes_ + bytes > kMaxAheadBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("frames of more than ", kMaxAheadBytes,
                                                       " bytes wait for frame ", received_ + 1,
                                                       "; the connection must be made anew"));
    }
    const auto [at, fresh] = ahead_.try_emplace(sequence, Ahead{.type = envelope.type});
    if (!fresh) return absl::OkStatus();
    at->second.body.assign(envelope.body.begin(), envelope.body.end());
    ahead_bytes_ += bytes;
    return absl::OkStatus();
  }
  // Counted before `take` runs: a message that `take` sends acknowledges this frame already.
  ++received_;
  bytes_since_ack_ += envelope.body.size();
  absl::Status status = take({.type = envelope.type, .body = envelope.body});
  while (status.ok() && !ahead_.empty() && ahead_.begin()->first == received_ + 1) {
    const Ahead frame = std::move(ahead_.extract(ahead_.begin()).mapped());
    ahead_bytes_ -= frame.body.size();
    ++received_;
    bytes_since_ack_ += frame.body.size();
    status = take({.type = frame.type, .body = frame.body});
  }
  return status;
}

std::string ReliableChannel::AckMessage() {
  OnAckSent();
  return EncodeMessage(FrameType::kAck, 0, received_, std::string_view());
}

}  // namespace kvxfer
