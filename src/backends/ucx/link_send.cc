// Sending: control frames first, then messages, then data, each as far as the path has room.

#include <algorithm>
#include <cstring>
#include <utility>

#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/link.h"
#include "src/backends/ucx/path.h"
#include "src/backends/ucx/regions.h"

namespace kvxfer::ucx {
namespace {

// A piece of fewer bytes waits for the next frame, unless its run ends with it.
constexpr size_t kSmallestPiece = 64;

std::span<std::byte, kPieceBytes> PieceAt(std::span<std::byte> body, size_t at) {
  return body.subspan(at).first<kPieceBytes>();
}

uint32_t RkeyOf(const Run& run) { return static_cast<const UcxRemoteKey*>(run.key)->rkey(); }

}  // namespace

// The body is in place.
void Link::SendFrame(FrameHead head) {
  head.cookie = peer_cookie_;
  head.order = ++order_;
  path_->Send(head);
}

bool Link::WantsToSend() const {
  if (state_ != State::kUp) return false;
  if (!controls_.empty() || !messages_.empty()) return true;
  return HasCredit() && (!served_.empty() || (authorized_ && !ops_.empty()));
}

void Link::Pump(size_t& budget) {
  while (WantsToSend() && path_->room() && budget > 0) {
    if (!SendOne(budget)) return;
  }
}

// False: the link is over.
bool Link::SendOne(size_t& budget) {
  size_t sent = kFrameHeadBytes;
  if (!controls_.empty()) {
    SendControl();
  } else if (!messages_.empty()) {
    sent += SendMessagePart();
  } else {
    ++data_sent_;
    if (!served_.empty()) {
      sent += ServeReadPart();
    } else if (ops_.front().op.kind == OpKind::kWrite) {
      sent += SendWritePart();
    } else {
      sent += SendReadRequest();
    }
  }
  budget -= std::min(budget, sent);
  return !down();
}

void Link::SendControl() {
  const Control control = controls_.front();
  controls_.pop_front();
  std::string body;
  if (control.kind == FrameKind::kWelcome)
    body = Encode(Welcome{.cookie = cookie_, .path = path_->id()});
  std::ranges::copy(std::as_bytes(std::span(body)), path_->Begin().begin());
  const bool credit = control.kind == FrameKind::kCredit;
  if (credit) data_told_ = data_taken_;
  SendFrame({.kind = control.kind,
             .bytes = static_cast<uint32_t>(body.size()),
             .transfer = control.transfer,
             .number = credit ? data_taken_ : 0});
}

size_t Link::SendMessagePart() {
  const std::string& message = messages_.front();
  const std::span<std::byte> body = path_->Begin();
  const size_t bytes = std::min(body.size(), message.size() - message_sent_);
  std::memcpy(body.data(), message.data() + message_sent_, bytes);
  message_sent_ += bytes;
  const bool last = message_sent_ == message.size();
  SendFrame({.kind = FrameKind::kMessage,
             .flags = last ? kLast : uint16_t{0},
             .bytes = static_cast<uint32_t>(bytes)});
  if (last) {
    message_bytes_ -= message.size();
    messages_.pop_front();
    message_sent_ = 0;
  }
  return bytes;
}

// As much of the first op as one frame takes. With its last byte the op is over: its source is not
// read again.
size_t Link::SendWritePart() {
  Queued& write = ops_.front();
  const std::span<std::byte> body = path_->Begin();
  size_t at = 0;
  while (write.run < write.op.runs.size()) {
    const Run& run = write.op.runs[write.run];
    const uint64_t left = run.bytes - write.offset;
    if (left > 0) {
      const size_t room = body.size() - at;
      if (room < kPieceBytes + std::min<uint64_t>(left, kSmallestPiece)) break;
      const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(left, room - kPieceBytes));
      Encode({.address = run.remote + write.offset, .bytes = bytes, .rkey = RkeyOf(run)},
             PieceAt(body, at));
      std::memcpy(&body[at + kPieceBytes],
                  reinterpret_cast<const std::byte*>(run.local) + write.offset, bytes);
      at += kPieceBytes + bytes;
      write.offset += bytes;
      if (bytes < left) break;
    }
    ++write.run;
    write.offset = 0;
  }
  const Op op = write.op;
  const bool last = write.run == op.runs.size();
  const unsigned flags = (last ? kLast : 0u) | (last && op.has_immediate ? kImmediate : 0u);
  SendFrame({.kind = FrameKind::kWrite,
             .flags = static_cast<uint16_t>(flags),
             .bytes = static_cast<uint32_t>(at),
             .transfer = op.transfer,
             .immediate = op.immediate});
  if (last) {
    ops_.pop_front();
    Complete(op.id, absl::OkStatus());
  }
  return at;
}

size_t Link::SendReadRequest() {
  const Op op = ops_.front().op;
  ops_.pop_front();
  const std::span<std::byte> body = path_->Begin();
  size_t at = 0;
  for (const Run& run : op.runs) {
    if (run.bytes == 0) continue;
    Encode({.address = run.remote, .bytes = static_cast<uint32_t>(run.bytes), .rkey = RkeyOf(run)},
           PieceAt(body, at));
    at += kPieceBytes;
  }
  const uint32_t number = ++read_number_;
  reads_.try_emplace(number, Reading{.op = op});
  SendFrame({.kind = FrameKind::kRead,
             .bytes = static_cast<uint32_t>(at),
             .transfer = op.transfer,
             .number = number});
  return at;
}

// The next bytes of the first read that is served. Its regions are asked for each time: the agent
// may have closed one since.
size_t Link::ServeReadPart() {
  Serving& read = served_.front();
  const std::span<std::byte> body = path_->Begin();
  size_t at = 0;
  while (!read.voided && read.piece < read.pieces.size() && at < body.size()) {
    const Piece& piece = read.pieces[read.piece];
    if (!backend_->regions().Check(piece, Access::kRemoteRead).ok()) {
      read.voided = true;
      break;
    }
    const auto bytes =
        static_cast<uint32_t>(std::min<size_t>(piece.bytes - read.offset, body.size() - at));
    std::memcpy(&body[at], reinterpret_cast<const std::byte*>(piece.address) + read.offset, bytes);
    at += bytes;
    read.offset += bytes;
    if (read.offset < piece.bytes) break;
    ++read.piece;
    read.offset = 0;
  }
  if (read.voided) at = 0;
  const bool last = read.voided || read.piece == read.pieces.size();
  const unsigned flags = (last ? kLast : 0u) | (read.voided ? kVoid : 0u);
  SendFrame({.kind = FrameKind::kReadData,
             .flags = static_cast<uint16_t>(flags),
             .bytes = static_cast<uint32_t>(at),
             .number = read.number});
  if (last) served_.pop_front();
  return at;
}

// The last word, behind what waits: there is no later turn, so room is not asked for. What waits is
// bounded; fences go without saying. A peer that takes nothing is told nothing.
void Link::SendBye(std::string_view why) {
  if (peer_cookie_ == 0 || path_->swamped()) return;
  std::erase_if(controls_, [](const Control& c) { return c.kind == FrameKind::kFence; });
  while (!controls_.empty()) SendControl();
  while (!messages_.empty()) SendMessagePart();
  const std::span<std::byte> body = path_->Begin();
  std::memcpy(body.data(), why.data(), why.size());
  SendFrame({.kind = FrameKind::kBye, .bytes = static_cast<uint32_t>(why.size())});
}

}  // namespace kvxfer::ucx
