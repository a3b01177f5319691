// UcxEndpoint, sending: control frames first, then messages, then data, as far as the path has
// space.

#include <algorithm>
#include <utility>

#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/endpoint.h"
#include "src/backends/ucx/outgoing.h"
#include "src/backends/ucx/path.h"

namespace kvxfer::ucx {
namespace {

// A piece of fewer bytes waits for the next frame, unless its run ends with it.
constexpr size_t kSmallestPiece = 64;
// If less of the budget than this is left, a frame of this size is sent all the same: tiny frames
// cost as much as large ones.
constexpr size_t kSmallestFrame = 8 * 1024;

uint32_t RkeyOf(const Run& run) { return static_cast<const net::RkeyOnly*>(run.key)->rkey(); }

}  // namespace

// Sends the frame that was begun.
void UcxEndpoint::SendFrame(FrameHead head) {
  head.cookie = peer_cookie_;
  head.order = ++order_;
  path_->Send(head);
}

bool UcxEndpoint::WantsToSend() const {
  if (state_ != State::kUp) return false;
  if (!controls_.empty() || !messages_.empty()) return true;
  return HasCredit() && (!served_.empty() || (authorized_ && !ops_.empty()));
}

void UcxEndpoint::Pump(size_t& budget) {
  while (WantsToSend() && path_->space() && budget > 0) {
    if (!SendOne(budget)) return;
  }
}

// Returns false if the endpoint has ended.
bool UcxEndpoint::SendOne(size_t& budget) {
  const size_t space = std::clamp(budget, kSmallestFrame, kMaxFrameBytes) - kFrameHeadBytes;
  size_t sent = kFrameHeadBytes;
  if (!controls_.empty()) {
    SendControl();
  } else if (!messages_.empty()) {
    sent += SendMessagePart(space);
  } else {
    sent += SendData(space);
    // Has to be what the peer's TookData computes for this frame.
    data_sent_ += ChargeOf(sent);
  }
  budget -= std::min(budget, sent);
  return !down();
}

size_t UcxEndpoint::SendData(size_t space) {
  if (!served_.empty()) return ServeReadPart(space);
  if (ops_.front().op.kind == OpKind::kWrite) return SendWritePart(space);
  return SendReadRequest();
}

void UcxEndpoint::SendControl() {
  const Control control = controls_.front();
  controls_.pop_front();
  std::string body;
  if (control.kind == FrameKind::kWelcome) {
    body = Encode(Welcome{.cookie = cookie_, .path = path_->id()});
  }
  path_->Begin().Append(std::as_bytes(std::span(body)));
  const bool credit = control.kind == FrameKind::kCredit;
  if (credit) data_reported_ = data_taken_;
  SendFrame(
      {.kind = control.kind, .transfer = control.transfer, .number = credit ? data_taken_ : 0});
}

size_t UcxEndpoint::SendMessagePart(size_t space) {
  const std::string& message = messages_.front();
  const size_t bytes = std::min(space, message.size() - message_sent_);
  path_->Begin().Lend(message.data() + message_sent_, bytes);
  message_sent_ += bytes;
  const bool last = message_sent_ == message.size();
  SendFrame({.kind = FrameKind::kMessage, .flags = last ? kLast : uint16_t{0}});
  if (last) {
    message_bytes_ -= message.size();
    messages_.pop_front();
    message_sent_ = 0;
  }
  return bytes;
}

// Sends as much of the first op as one frame takes. With its last byte the op is complete, because
// its source is not read again (Path::Send).
size_t UcxEndpoint::SendWritePart(size_t space) {
  Queued& write = ops_.front();
  const Op op = write.op;
  Outgoing& frame = path_->Begin();
  uint32_t pieces = 0;
  while (!write.walk.done()) {
    const Run& run = write.walk.run();
    const size_t free = space - frame.body_bytes();
    if (free < kWireRunBytes + std::min<uint64_t>(run.bytes, kSmallestPiece)) break;
    const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(run.bytes, free - kWireRunBytes));
    frame.Append(WireRun{.address = run.remote, .bytes = bytes, .rkey = RkeyOf(run)});
    frame.Lend(reinterpret_cast<const std::byte*>(run.local), bytes);
    ++pieces;
    write.walk.Take(bytes);
  }
  const bool last = write.walk.done();
  const unsigned flags = (last ? kLast : 0u) | (last && op.has_immediate ? kImmediate : 0u);
  const size_t sent = frame.body_bytes();
  SendFrame({.kind = FrameKind::kWrite,
             .flags = static_cast<uint16_t>(flags),
             .transfer = op.transfer,
             .number = pieces,
             .immediate = op.immediate});
  if (last) {
    ops_.pop_front();
    Complete(op.id, absl::OkStatus());
  }
  return sent;
}

// One frame is always enough, see the static_assert in frames.h.
size_t UcxEndpoint::SendReadRequest() {
  const Queued read = ops_.front();
  ops_.pop_front();
  Outgoing& frame = path_->Begin();
  for (RunWalk walk = read.walk; !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    frame.Append(WireRun{
        .address = run.remote, .bytes = static_cast<uint32_t>(run.bytes), .rkey = RkeyOf(run)});
  }
  const uint32_t number = ++read_number_;
  reads_.try_emplace(number, Reading{.op = read.op, .walk = read.walk});
  const size_t sent = frame.body_bytes();
  SendFrame({.kind = FrameKind::kRead, .transfer = read.op.transfer, .number = number});
  return sent;
}

// Sends the next bytes of the first read to be served. Each call checks the regions again, because
// the agent may have closed one since.
size_t UcxEndpoint::ServeReadPart(size_t space) {
  Serving& read = served_.front();
  Outgoing& frame = path_->Begin();
  while (!read.voided && read.piece < read.pieces.size() && frame.body_bytes() < space) {
    const WireRun& piece = read.pieces[read.piece];
    if (!backend_->regions().Check(piece, Access::kRemoteRead).ok()) {
      read.voided = true;
      break;
    }
    const auto bytes = static_cast<uint32_t>(
        std::min<size_t>(piece.bytes - read.offset, space - frame.body_bytes()));
    frame.Lend(reinterpret_cast<const std::byte*>(piece.address) + read.offset, bytes);
    read.offset += bytes;
    if (read.offset < piece.bytes) break;
    ++read.piece;
    read.offset = 0;
  }
  // The frame is started again, without the bytes that were lent to it.
  if (read.voided) path_->Begin();
  const bool last = read.voided || read.piece == read.pieces.size();
  const unsigned flags = (last ? kLast : 0u) | (read.voided ? kVoid : 0u);
  const size_t sent = frame.body_bytes();
  SendFrame(
      {.kind = FrameKind::kReadData, .flags = static_cast<uint16_t>(flags), .number = read.number});
  if (last) served_.pop_front();
  return sent;
}

// Sends the last frame, behind what is queued. It does not ask the path for space, because no later
// turn will come; what is queued is bounded. Fences are left out: the end of the endpoint answers
// them. Returns false, and sends nothing, if the peer takes nothing or its cookie is not known.
bool UcxEndpoint::SendBye(std::string_view why) {
  if (peer_cookie_ == 0 || path_->swamped()) return false;
  std::erase_if(controls_, [](const Control& c) { return c.kind == FrameKind::kFence; });
  while (!controls_.empty()) SendControl();
  while (!messages_.empty()) SendMessagePart(kMaxBodyBytes);
  path_->Begin().Append(std::as_bytes(std::span(why)));
  SendFrame({.kind = FrameKind::kBye});
  return true;
}

}  // namespace kvxfer::ucx
