// Sending on one data stream: frames gathered straight from the runs of their ops.

#include <algorithm>
#include <array>
#include <utility>

#include "src/backends/tcp/link.h"
#include "src/backends/tcp/rail.h"

namespace kvxfer::tcp {
namespace {

// IOV_MAX, less one each for prefix and trailer.
constexpr size_t kMaxPayloadPieces = kMaxIovecs - 2;
// What may wait for the socket: enough to keep it busy between two Polls, little enough that other
// transfers get their turn and a cancelled op has seldom begun.
constexpr uint64_t kMaxQueuedBytes = 1024 * 1024;
constexpr size_t kMaxQueuedFrames = 32;
// Reads asked for and not answered.
constexpr size_t kMaxPendingReads = 8;

// What goes in place of a payload that must not be read any more.
alignas(4096) constexpr std::array<std::byte, 64 * 1024> kFiller{};

bool HasPayload(FrameKind kind) {
  return kind == FrameKind::kWrite || kind == FrameKind::kReadResponse;
}

}  // namespace

bool Rail::HasRoom() const {
  return queued_bytes_ < kMaxQueuedBytes && out_.size() < kMaxQueuedFrames &&
         reads_.size() < kMaxPendingReads;
}

void Rail::Push(const Op& op) {
  uint64_t bytes = 0;
  for (const Run& run : op.runs) bytes += run.bytes;
  Outgoing& frame = out_.emplace_back();
  frame.head = {.kind = op.kind == OpKind::kWrite ? FrameKind::kWrite : FrameKind::kReadRequest,
                .runs = static_cast<uint16_t>(op.runs.size()),
                .bytes = static_cast<uint32_t>(bytes),
                .transfer = op.transfer};
  frame.op = op.id;
  frame.has_immediate = op.has_immediate;
  frame.immediate = op.immediate;
  frame.runs = op.runs;
  frame.owes_completion = true;
  if (op.kind == OpKind::kRead) {
    frame.head.number = ++last_number_;
    frame.owes_completion = false;
    reads_.push_back({.number = last_number_,
                      .op = op.id,
                      .transfer = op.transfer,
                      .bytes = bytes,
                      .runs = op.runs});
  } else {
    queued_bytes_ += bytes;
  }
}

void Rail::PushMarker(uint64_t transfer) {
  Outgoing marker;
  marker.head = {.kind = FrameKind::kFence, .transfer = transfer};
  out_.insert(out_.begin() + (begun_ ? 1 : 0), std::move(marker));
}

void Rail::EncodeRuns(const Outgoing& frame) {
  std::byte* at = prefix_.data() + kFrameHeadBytes;
  for (const Run& run : frame.runs) {
    const WireRun wire{.address = run.remote,
                       .bytes = static_cast<uint32_t>(run.bytes),
                       .rkey = static_cast<const TcpRemoteKey*>(run.key)->rkey()};
    Encode(wire, std::span<std::byte, kWireRunBytes>(at, kWireRunBytes));
    at += kWireRunBytes;
  }
}

void Rail::Begin() {
  const Outgoing& frame = out_.front();
  prefix_.resize(kFrameHeadBytes + frame.head.runs * kWireRunBytes);
  Encode(frame.head, std::span(prefix_).first<kFrameHeadBytes>());
  if (frame.head.runs > 0) EncodeRuns(frame);
  begun_ = true;
  sent_ = run_ = 0;
  run_sent_ = 0;
}

size_t Rail::FrameBytes() const {
  const FrameHead& head = out_.front().head;
  return prefix_.size() + (HasPayload(head.kind) ? head.bytes + kTrailerBytes : 0);
}

size_t Rail::GatherPayload(std::span<iovec> pieces, size_t limit) const {
  const Outgoing& frame = out_.front();
  const size_t payload_sent = sent_ > prefix_.size() ? sent_ - prefix_.size() : 0;
  limit = std::min(limit, frame.head.bytes - std::min<size_t>(payload_sent, frame.head.bytes));
  size_t n = 0;
  size_t run = run_;
  uint64_t skip = run_sent_;
  while (limit > 0 && n < pieces.size()) {
    iovec piece{const_cast<std::byte*>(kFiller.data()), std::min(limit, kFiller.size())};
    if (!frame.voided) {
      const Run& from = frame.runs[run++];
      piece = {reinterpret_cast<void*>(from.local + skip), std::min(limit, from.bytes - skip)};
      skip = 0;
      if (piece.iov_len == 0) continue;  // an empty run
    }
    pieces[n++] = piece;
    limit -= piece.iov_len;
  }
  return n;
}

// Pieces of the frame under way from sent_ on; at most about `limit` bytes of payload.
size_t Rail::Gather(std::span<iovec> pieces, size_t limit) const {
  const FrameHead& head = out_.front().head;
  size_t n = 0;
  if (sent_ < prefix_.size()) {
    pieces[n++] = {const_cast<std::byte*>(prefix_.data()) + sent_, prefix_.size() - sent_};
  }
  if (!HasPayload(head.kind)) return n;
  const size_t payload_end = prefix_.size() + head.bytes;
  size_t reached = std::max(sent_, prefix_.size());
  const size_t payload = GatherPayload(pieces.subspan(n, kMaxPayloadPieces), limit);
  for (size_t i = n; i < n + payload; ++i) reached += pieces[i].iov_len;
  n += payload;
  if (reached >= payload_end) {
    const size_t done = reached - payload_end;
    pieces[n++] = {const_cast<std::byte*>(trailer_.data()) + done, kTrailerBytes - done};
  }
  return n;
}

void Rail::Advance(size_t bytes) {
  const Outgoing& frame = out_.front();
  const size_t before = std::max(sent_, prefix_.size());
  sent_ += bytes;
  if (frame.voided || !HasPayload(frame.head.kind) || sent_ <= prefix_.size()) return;
  const size_t payload_end = prefix_.size() + frame.head.bytes;
  if (before >= payload_end) return;
  uint64_t payload = std::min(sent_, payload_end) - before;
  while (payload > 0) {
    const uint64_t step = std::min(payload, frame.runs[run_].bytes - run_sent_);
    payload -= step;
    run_sent_ += step;
    if (run_sent_ == frame.runs[run_].bytes) {
      ++run_;
      run_sent_ = 0;
    }
  }
}

absl::Status Rail::Send(size_t budget) {
  std::array<iovec, kMaxIovecs> pieces;
  while (writable() && budget > 0 && !out_.empty()) {
    if (!begun_) Begin();
    const Outgoing& frame = out_.front();
    // The verdict is made up anew for each call, for a fence may have come in between; of a
    // trailer that is partly sent the rest stays the same.
    if (sent_ <= FrameBytes() - kTrailerBytes || !HasPayload(frame.head.kind)) {
      Encode(Trailer{.valid = !frame.voided,
                     .has_immediate = frame.has_immediate,
                     .immediate = frame.immediate},
             trailer_);
    }
    const size_t n = Gather(pieces, budget);
    absl::StatusOr<size_t> sent = Write(std::span(pieces).first(n));
    if (!sent.ok()) return sent.status();
    if (*sent == 0) break;
    budget -= std::min(budget, *sent);
    Advance(*sent);
    if (sent_ == FrameBytes()) FinishFrame();
  }
  return absl::OkStatus();
}

void Rail::FinishFrame() {
  begun_ = false;
  Outgoing frame = std::move(out_.front());
  out_.pop_front();
  if (HasPayload(frame.head.kind)) queued_bytes_ -= frame.head.bytes;
  if (frame.owes_completion) CompleteOp(frame.op, absl::OkStatus());
}

}  // namespace kvxfer::tcp
