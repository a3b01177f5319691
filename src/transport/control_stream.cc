#include "src/transport/control_stream.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer::net {
namespace {

// What a stream keeps of its send buffer when that is empty.
constexpr size_t kIdleSendBytes = 4 * 1024;

iovec Piece(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

}  // namespace

void ControlStream::Restart() {
  Release();
  out_.clear();
  sent_ = 0;
  in_ = {};
  own_.reset();
}

absl::StatusOr<bool> ControlStream::Push(ControlKind kind, std::span<const std::byte> payload) {
  const bool bounded = kind == ControlKind::kMessage;
  // Only messages are bounded here: the caller can try them again. Frames of the backends have
  // bounds of their own, and Flush checks the total.
  if (bounded && queued_bytes() + payload.size() > kMaxQueued) return false;
  // Something waits already: append, to keep the order.
  if (!out_.empty()) {
    const std::span<std::byte> place = Append(kind, payload.size());
    std::copy(payload.begin(), payload.end(), place.begin());
    if (absl::Status flushed = Flush(); !flushed.ok()) return flushed;
    return true;
  }
  std::array<std::byte, kControlHeadBytes> head;
  Encode(ControlHead{.bytes = static_cast<uint32_t>(payload.size()), .kind = kind}, head);
  size_t sent = 0;
  if (attached()) {
    // The usual case: nothing waits, so the socket gets the payload without a copy.
    std::array<iovec, 2> pieces{Piece(head.data(), head.size()),
                                Piece(payload.data(), payload.size())};
    absl::StatusOr<size_t> n = Write(pieces);
    if (!n.ok()) return n.status();
    sent = *n;
  }
  // The head must stay whole, even if the socket took only part of it.
  if (sent < head.size()) {
    out_.append(reinterpret_cast<const char*>(head.data()) + sent, head.size() - sent);
    sent = head.size();
  }
  const std::span<const std::byte> rest = payload.subspan(sent - head.size());
  out_.append(reinterpret_cast<const char*>(rest.data()), rest.size());
  return true;
}

std::span<std::byte> ControlStream::Append(ControlKind kind, size_t bytes) {
  const size_t at = out_.size();
  out_.resize(at + kControlHeadBytes + bytes);
  const std::span<std::byte> place = std::as_writable_bytes(std::span(out_)).subspan(at);
  Encode(ControlHead{.bytes = static_cast<uint32_t>(bytes), .kind = kind},
         place.first<kControlHeadBytes>());
  return place.subspan(kControlHeadBytes);
}

absl::StatusOr<bool> ControlStream::PushRaw(std::span<const std::byte> bytes) {
  std::array<iovec, 1> pieces{Piece(bytes.data(), bytes.size())};
  absl::StatusOr<size_t> n = Write(pieces);
  if (!n.ok()) return n.status();
  if (*n == 0) return false;
  if (*n < bytes.size()) return absl::UnavailableError("no room for the first bytes");
  return true;
}

absl::Status ControlStream::Flush() {
  while (!out_.empty() && writable()) {
    std::array<iovec, 1> pieces{Piece(out_.data() + sent_, out_.size() - sent_)};
    absl::StatusOr<size_t> n = Write(pieces);
    if (!n.ok()) return n.status();
    sent_ += *n;
    if (sent_ == out_.size()) {
      out_.clear();
      sent_ = 0;
      if (out_.capacity() > kIdleSendBytes) out_.shrink_to_fit();
    } else if (sent_ > kMaxQueued / 2) {
      // Rarely, because erasing moves what is left.
      out_.erase(0, std::exchange(sent_, 0));
    }
  }
  if (queued_bytes() > kMaxUnsent) {
    return absl::ResourceExhaustedError("the peer does not read the answers it asks for");
  }
  return absl::OkStatus();
}

std::string ControlStream::TakeQueued() {
  out_.erase(0, std::exchange(sent_, 0));
  return std::exchange(out_, {});
}

absl::StatusOr<ControlHead> ControlStream::Head() const {
  absl::StatusOr<ControlHead> head = DecodeControlHead(buffered().first<kControlHeadBytes>());
  if (head.ok() && head->bytes > max_frame_) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", head->bytes, " bytes before it was authorised"));
  }
  return head;
}

size_t ControlStream::BytesMissing() const {
  const std::span<const std::byte> have = buffered();
  if (have.size() < kControlHeadBytes) return kControlHeadBytes - have.size();
  const absl::StatusOr<ControlHead> head = Head();
  // A damaged head counts as complete: Front then reports the error.
  if (!head.ok()) return 0;
  const size_t whole = kControlHeadBytes + head->bytes;
  return whole > have.size() ? whole - have.size() : 0;
}

bool ControlStream::HasFrame() const { return BytesMissing() == 0; }

absl::StatusOr<bool> ControlStream::Fill() {
  if (!in_.empty()) return FillOwn();
  const std::span<std::byte> lent = space_->Lend(this);
  std::array<iovec, 1> pieces{Piece(lent.data(), lent.size())};
  absl::StatusOr<size_t> n = Read(pieces);
  if (!n.ok()) return n.status();
  if (*n == 0) return false;
  space_->Use(this, *n);
  in_ = lent.first(*n);
  return true;
}

absl::StatusOr<bool> ControlStream::FillOwn() {
  const size_t missing = BytesMissing();
  const auto space = [this] {
    if (own_ == nullptr) return size_t{0};
    return static_cast<size_t>(own_.get() + own_bytes_ - (in_.data() + in_.size()));
  };
  if (space() < std::max<size_t>(missing, 1)) {
    MoveTo(in_.size() + std::max(missing, ReceiveSpace::kReadBytes));
  }
  std::array<iovec, 1> pieces{Piece(in_.data() + in_.size(), space())};
  absl::StatusOr<size_t> n = Read(pieces);
  if (!n.ok()) return n.status();
  in_ = {in_.data(), in_.size() + *n};
  return *n > 0;
}

void ControlStream::MoveTo(size_t bytes) {
  ReceiveSpace::Bytes to = std::make_unique_for_overwrite<std::byte[]>(bytes);
  std::ranges::copy(in_, to.get());
  in_ = {to.get(), in_.size()};
  own_ = std::move(to);
  own_bytes_ = bytes;
}

void ControlStream::MoveOut() {
  // Its own bytes stay where they are.
  if (own_ == nullptr && !in_.empty()) MoveTo(in_.size());
}

void ControlStream::Consume(size_t bytes) {
  in_ = in_.subspan(bytes);
  // The application may still look at a message that was in there.
  if (in_.empty() && own_ != nullptr) space_->Keep(std::move(own_));
}

absl::StatusOr<std::optional<ControlStream::Frame>> ControlStream::Front() const {
  const std::span<const std::byte> have = buffered();
  if (have.size() < kControlHeadBytes) return std::nullopt;
  const absl::StatusOr<ControlHead> head = Head();
  if (!head.ok()) return head.status();
  if (have.size() - kControlHeadBytes < head->bytes) return std::nullopt;
  return Frame{.kind = head->kind, .payload = have.subspan(kControlHeadBytes, head->bytes)};
}

}  // namespace kvxfer::net
