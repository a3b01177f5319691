// TcpRail: sending on one data stream. Frames are gathered straight from the blocks of their ops.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/backends/tcp/rail.h"
#include "src/transport/host/hidden_move.h"

namespace kvxfer::tcp {
namespace {

// A prefix, a part of the payload, and a trailer.
constexpr size_t kMinFramePieces = 3;
constexpr size_t kMaxSparePrefixes = 8;
// How much may wait for the socket. Enough that one system call takes some megabytes, because each
// call wakes the receiver: 1 MB at a time costs a third more CPU over loopback. Not more, so that
// other transfers get their turn and a cancelled op has rarely begun.
constexpr uint64_t kMaxQueuedBytes = 4 * 1024 * 1024;
constexpr size_t kMaxQueuedFrames = 32;
// Reads that were requested and not answered.
constexpr size_t kMaxPendingReads = 8;

// Sent instead of a payload that must no longer be read.
alignas(4096) constexpr std::array<std::byte, 64 * 1024> kFiller{};

// Copies the next bytes of `payload`, up to `limit` and the size of `to`. Returns their number.
size_t Pack(RunWalk payload, size_t limit, std::span<std::byte> to) {
  const HiddenMove moves;
  limit = std::min(limit, to.size());
  for (size_t packed = 0; packed < limit; payload.Next()) {
    const Run& run = payload.run();
    const size_t bytes = std::min<size_t>(limit - packed, run.bytes);
    std::memcpy(to.data() + packed, reinterpret_cast<const void*>(run.local), bytes);
    packed += bytes;
  }
  return limit;
}

// The next pieces of `payload`, of `limit` bytes at most. Returns their number.
size_t Cut(RunWalk payload, size_t limit, std::span<iovec> pieces) {
  size_t n = 0;
  for (; limit > 0 && n < pieces.size(); payload.Next()) {
    const Run& run = payload.run();
    const size_t bytes = std::min<size_t>(limit, run.bytes);
    pieces[n++] = {reinterpret_cast<void*>(run.local), bytes};
    limit -= bytes;
  }
  return n;
}

// The same of filler.
size_t CutFiller(size_t limit, std::span<iovec> pieces) {
  size_t n = 0;
  for (; limit > 0 && n < pieces.size(); ++n) {
    pieces[n] = {const_cast<std::byte*>(kFiller.data()), std::min(limit, kFiller.size())};
    limit -= pieces[n].iov_len;
  }
  return n;
}

void Skip(RunWalk& payload, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t step = std::min(bytes, payload.run().bytes);
    payload.Take(step);
    bytes -= step;
  }
}

bool HasRuns(FrameKind kind) {
  return kind == FrameKind::kWrite || kind == FrameKind::kReadRequest;
}

bool HasPayload(FrameKind kind) {
  return kind == FrameKind::kWrite || kind == FrameKind::kReadResponse;
}

}  // namespace

bool TcpRail::HasSpace(uint64_t bytes, size_t frames, size_t reads) {
  return bytes < kMaxQueuedBytes && frames < kMaxQueuedFrames && reads < kMaxPendingReads;
}

bool TcpRail::HasSpace() const {
  return up() && HasSpace(queued_bytes_, out_.size(), reads_.size());
}

void TcpRail::Push(const Op& op) {
  const uint64_t bytes = op.blocks.bytes;
  given_ += bytes;
  Outgoing& frame = out_.emplace_back();
  frame.head = {.kind = op.kind == OpKind::kWrite ? FrameKind::kWrite : FrameKind::kReadRequest,
                .runs = static_cast<uint16_t>(op.blocks.pieces),
                .bytes = static_cast<uint32_t>(bytes),
                .transfer = op.transfer};
  frame.op = op.id;
  frame.has_immediate = op.has_immediate;
  frame.immediate = op.immediate;
  frame.payload = RunWalk(op.blocks);
  frame.owes_completion = true;
  if (op.kind == OpKind::kRead) {
    frame.head.number = ++last_number_;
    frame.owes_completion = false;
    reads_.push_back(
        {.number = last_number_, .op = op.id, .transfer = op.transfer, .blocks = op.blocks});
  } else {
    queued_bytes_ += bytes;
  }
}

void TcpRail::PushMarker(uint64_t transfer) {
  Outgoing marker;
  marker.head = {.kind = FrameKind::kFence, .transfer = transfer};
  // A marker overtakes frames that have not begun; those of its transfer were removed before.
  out_.insert(out_.begin() + (begun() ? 1 : 0), std::move(marker));
}

void TcpRail::EncodePrefix(Outgoing& frame) {
  if (!frame.prefix.empty()) return;
  if (!spare_prefixes_.empty()) {
    frame.prefix = std::move(spare_prefixes_.back());
    spare_prefixes_.pop_back();
  }
  if (HasRuns(frame.head.kind)) {
    EncodeRuns(frame);
  } else {
    frame.prefix.resize(kFrameHeadBytes);
  }
  Encode(frame.head, std::span(frame.prefix).first<kFrameHeadBytes>());
}

// Nothing of the frame was sent yet, so the walk through its payload is at the beginning.
void TcpRail::EncodeRuns(Outgoing& frame) {
  // Space for every run before merging; head.runs is their number so far.
  frame.prefix.resize(kFrameHeadBytes + frame.head.runs * kWireRunBytes);
  std::byte* at = frame.prefix.data() + kFrameHeadBytes;
  frame.head.runs = 0;
  for (RunWalk walk = frame.payload; !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    const WireRun wire{.address = run.remote,
                       .bytes = static_cast<uint32_t>(run.bytes),
                       .rkey = static_cast<const net::RkeyOnly*>(run.key)->rkey()};
    Encode(wire, std::span<std::byte, kWireRunBytes>(at, kWireRunBytes));
    at += kWireRunBytes;
    ++frame.head.runs;
  }
  frame.prefix.resize(kFrameHeadBytes + frame.head.runs * kWireRunBytes);
  frame.short_runs = AreShort(frame.head.bytes, frame.head.runs);
}

// The trailer is encoded again for each call, because a fence may have voided the frame since the
// last one. Once a part of it was sent, the rest stays the same.
void TcpRail::EncodeTrailer(Outgoing& frame, size_t sent) const {
  if (sent > frame.prefix.size() + frame.head.bytes) return;
  Encode(Trailer{.valid = !frame.voided,
                 .has_immediate = frame.has_immediate,
                 .immediate = frame.immediate},
         frame.trailer);
}

// The next pieces of the payload of `frame`, of which `sent` bytes have been sent; at most `limit`
// bytes. Short runs are copied to `scratch`, as far as it suffices, to make one piece.
size_t TcpRail::GatherPayload(const Outgoing& frame, size_t sent, std::span<iovec> pieces,
                              size_t limit, std::span<std::byte>& scratch) const {
  const size_t payload_sent = sent > frame.prefix.size() ? sent - frame.prefix.size() : 0;
  limit = std::min(limit, frame.head.bytes - std::min<size_t>(payload_sent, frame.head.bytes));
  if (frame.voided) return CutFiller(limit, pieces);
  if (!frame.short_runs) return Cut(frame.payload, limit, pieces);
  const size_t packed = Pack(frame.payload, limit, scratch);
  if (packed == 0) return 0;
  pieces[0] = {scratch.data(), packed};
  scratch = scratch.subspan(packed);
  return 1;
}

// The pieces of the frames that wait, from sent_ on, until all pieces are used or about `limit`
// bytes of payload are reached. So small frames and small blocks share a system call.
size_t TcpRail::Gather(std::span<iovec> pieces, size_t limit) {
  size_t n = 0;
  size_t sent = sent_;
  std::span<std::byte> scratch = host_->scratch();
  for (Outgoing& frame : out_) {
    if (limit == 0 || pieces.size() - n < kMinFramePieces) break;
    EncodePrefix(frame);
    const size_t prefix = frame.prefix.size();
    if (sent < prefix) pieces[n++] = {frame.prefix.data() + sent, prefix - sent};
    if (HasPayload(frame.head.kind)) {
      EncodeTrailer(frame, sent);
      size_t reached = std::max(sent, prefix);
      const size_t space = pieces.size() - n - 1;
      const size_t payload = GatherPayload(frame, sent, pieces.subspan(n, space), limit, scratch);
      for (size_t i = n; i < n + payload; ++i) reached += pieces[i].iov_len;
      limit -= std::min(limit, reached - std::max(sent, prefix));
      n += payload;
      const size_t payload_end = prefix + frame.head.bytes;
      if (reached < payload_end) break;
      const size_t done = reached - payload_end;
      pieces[n++] = {frame.trailer.data() + done, kTrailerBytes - done};
    }
    sent = 0;
  }
  return n;
}

void TcpRail::Advance(size_t bytes) {
  while (bytes > 0) {
    Outgoing& frame = out_.front();
    const size_t prefix = frame.prefix.size();
    const size_t payload = HasPayload(frame.head.kind) ? frame.head.bytes : 0;
    const size_t whole = prefix + payload + (HasPayload(frame.head.kind) ? kTrailerBytes : 0);
    const size_t step = std::min(bytes, whole - sent_);
    const size_t sent = sent_ + step;
    // Payload that was voided, or sent to its end, is not read again.
    if (!frame.voided && sent > prefix && sent < prefix + payload) {
      Skip(frame.payload, sent - std::max(sent_, prefix));
    }
    sent_ = sent;
    bytes -= step;
    if (sent_ == whole) FinishFrame();
  }
}

absl::Status TcpRail::Send(size_t budget) {
  std::array<iovec, kMaxIovecs> pieces;
  while (writable() && budget > 0 && !out_.empty()) {
    const size_t n = Gather(pieces, budget);
    absl::StatusOr<size_t> sent = Write(std::span(pieces).first(n));
    if (!sent.ok()) return sent.status();
    if (*sent == 0) break;
    // The first bytes since the last check: begin to watch their acknowledgements.
    if (!watched_) {
      watched_ = true;
      answered_ = Now();
      host_->OnSent(index_);
    }
    budget -= std::min(budget, *sent);
    Advance(*sent);
  }
  return absl::OkStatus();
}

void TcpRail::FinishFrame() {
  Outgoing frame = std::move(out_.front());
  out_.pop_front();
  sent_ = 0;
  if (spare_prefixes_.size() < kMaxSparePrefixes) {
    frame.prefix.clear();
    spare_prefixes_.push_back(std::move(frame.prefix));
  }
  if (frame.head.kind == FrameKind::kReadRequest) requested_ = frame.head.number;
  if (HasPayload(frame.head.kind)) queued_bytes_ -= frame.head.bytes;
  if (frame.owes_completion) CompleteOp(frame.op, absl::OkStatus());
}

}  // namespace kvxfer::tcp
