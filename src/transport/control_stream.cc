#include "src/transport/control_stream.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer::net {
namespace {

// A small write and its OPEN fit into one read.
constexpr size_t kReadBytes = 32 * 1024;

iovec Piece(const void* data, size_t bytes) { return {const_cast<void*>(data), bytes}; }

}  // namespace

void ControlStream::Restart() {
  Release();
  out_.clear();
  sent_ = begin_ = end_ = 0;
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

std::span<const std::byte> ControlStream::buffered() const {
  return std::span(in_).subspan(begin_, end_ - begin_);
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
  const size_t have = end_ - begin_;
  // Reuse the buffer from its start whenever it is empty; otherwise move bytes only if space runs
  // out.
  if (have == 0) begin_ = end_ = 0;
  const size_t space = std::max(BytesMissing(), kReadBytes);
  if (in_.size() - end_ < space) {
    if (begin_ > 0) std::memmove(in_.data(), in_.data() + begin_, have);
    begin_ = 0;
    end_ = have;
    if (in_.size() - end_ < space) in_.resize(end_ + space);
  }
  std::array<iovec, 1> pieces{iovec{in_.data() + end_, in_.size() - end_}};
  absl::StatusOr<size_t> n = Read(pieces);
  if (!n.ok()) return n.status();
  end_ += *n;
  return *n > 0;
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
