// Rail: sending on one data stream. Frames are gathered straight from the runs of their ops.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "src/backends/tcp/link.h"
#include "src/backends/tcp/rail.h"

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

// Copies `runs` from byte `skip` on, up to `limit` and the size of `to`. Returns the number of
// bytes.
size_t Pack(std::span<const Run> runs, uint64_t skip, size_t limit, std::span<std::byte> to) {
  limit = std::min(limit, to.size());
  size_t packed = 0;
  for (const Run& run : runs) {
    if (packed == limit) break;
    const size_t bytes = std::min<size_t>(limit - packed, run.bytes - skip);
    std::memcpy(to.data() + packed, reinterpret_cast<const void*>(run.local + skip), bytes);
    packed += bytes;
    skip = 0;
  }
  return packed;
}

bool HasPayload(FrameKind kind) {
  return kind == FrameKind::kWrite || kind == FrameKind::kReadResponse;
}

}  // namespace

Rail::Rail(Link* link, uint32_t index) : Stream(link), link_(link), index_(index) {}

bool Rail::HasSpace() const {
  return up() && queued_bytes_ < kMaxQueuedBytes && out_.size() < kMaxQueuedFrames &&
         reads_.size() < kMaxPendingReads;
}

void Rail::Push(const Op& op) {
  uint64_t bytes = 0;
  for (const Run& run : op.runs) bytes += run.bytes;
  given_ += bytes;
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
  // A marker overtakes frames that have not begun; those of its transfer were removed before.
  out_.insert(out_.begin() + (begun() ? 1 : 0), std::move(marker));
}

void Rail::EncodePrefix(Outgoing& frame) {
  if (!frame.prefix.empty()) return;
  if (!spare_prefixes_.empty()) {
    frame.prefix = std::move(spare_prefixes_.back());
    spare_prefixes_.pop_back();
  }
  frame.prefix.resize(kFrameHeadBytes + frame.head.runs * kWireRunBytes);
  Encode(frame.head, std::span(frame.prefix).first<kFrameHeadBytes>());
  if (frame.head.runs == 0) return;
  std::byte* at = frame.prefix.data() + kFrameHeadBytes;
  for (const Run& run : frame.runs) {
    const WireRun wire{.address = run.remote,
                       .bytes = static_cast<uint32_t>(run.bytes),
                       .rkey = static_cast<const net::RkeyOnly*>(run.key)->rkey()};
    Encode(wire, std::span<std::byte, kWireRunBytes>(at, kWireRunBytes));
    at += kWireRunBytes;
  }
}

// The trailer is encoded again for each call, because a fence may have voided the frame since the
// last one. Once a part of it was sent, the rest stays the same.
void Rail::EncodeTrailer(Outgoing& frame, size_t sent) const {
  if (sent > frame.prefix.size() + frame.head.bytes) return;
  Encode(Trailer{.valid = !frame.voided,
                 .has_immediate = frame.has_immediate,
                 .immediate = frame.immediate},
         frame.trailer);
}

// The next pieces of the payload of `frame`, of which `sent` bytes have been sent; at most `limit`
// bytes. Short runs are copied to `scratch`, as far as it suffices, to make one piece.
size_t Rail::GatherPayload(const Outgoing& frame, size_t sent, std::span<iovec> pieces,
                           size_t limit, std::span<std::byte>& scratch) const {
  const size_t payload_sent = sent > frame.prefix.size() ? sent - frame.prefix.size() : 0;
  limit = std::min(limit, frame.head.bytes - std::min<size_t>(payload_sent, frame.head.bytes));
  size_t n = 0;
  size_t run = sent > 0 ? run_ : 0;
  uint64_t skip = sent > 0 ? run_sent_ : 0;
  if (!frame.voided && AreShort(frame.head.bytes, frame.runs.size())) {
    const size_t packed = Pack(frame.runs.subspan(run), skip, limit, scratch);
    if (packed == 0) return 0;
    pieces[0] = {scratch.data(), packed};
    scratch = scratch.subspan(packed);
    return 1;
  }
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

// The pieces of the frames that wait, from sent_ on, until all pieces are used or about `limit`
// bytes of payload are reached. So small frames and small blocks share a system call.
size_t Rail::Gather(std::span<iovec> pieces, size_t limit) {
  size_t n = 0;
  size_t sent = sent_;
  std::span<std::byte> scratch = link_->scratch();
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

// Bytes `from` to `to` of the payload of the current frame were sent.
void Rail::AdvancePayload(const Outgoing& frame, size_t from, size_t to) {
  while (from < to) {
    const uint64_t step = std::min<uint64_t>(to - from, frame.runs[run_].bytes - run_sent_);
    from += step;
    run_sent_ += step;
    if (run_sent_ == frame.runs[run_].bytes) {
      ++run_;
      run_sent_ = 0;
    }
  }
}

void Rail::Advance(size_t bytes) {
  while (bytes > 0) {
    const Outgoing& frame = out_.front();
    const size_t prefix = frame.prefix.size();
    const size_t payload = HasPayload(frame.head.kind) ? frame.head.bytes : 0;
    const size_t whole = prefix + payload + (HasPayload(frame.head.kind) ? kTrailerBytes : 0);
    const size_t step = std::min(bytes, whole - sent_);
    // A voided frame's runs are not read, so their position does not matter.
    if (!frame.voided) {
      const auto of_payload = [&](size_t at) {
        return std::clamp(at, prefix, prefix + payload) - prefix;
      };
      AdvancePayload(frame, of_payload(sent_), of_payload(sent_ + step));
    }
    sent_ += step;
    bytes -= step;
    if (sent_ == whole) FinishFrame();
  }
}

absl::Status Rail::Send(size_t budget) {
  std::array<iovec, kMaxIovecs> pieces;
  while (writable() && budget > 0 && !out_.empty()) {
    const size_t n = Gather(pieces, budget);
    absl::StatusOr<size_t> sent = Write(std::span(pieces).first(n));
    if (!sent.ok()) return sent.status();
    if (*sent == 0) break;
    // The first bytes since the last check: begin to watch their acknowledgements.
    if (!watched_) {
      watched_ = true;
      answered_ = link_->WatchAcknowledgements();
    }
    budget -= std::min(budget, *sent);
    Advance(*sent);
  }
  return absl::OkStatus();
}

void Rail::FinishFrame() {
  Outgoing frame = std::move(out_.front());
  out_.pop_front();
  sent_ = run_ = 0;
  run_sent_ = 0;
  if (spare_prefixes_.size() < kMaxSparePrefixes) {
    frame.prefix.clear();
    spare_prefixes_.push_back(std::move(frame.prefix));
  }
  if (HasPayload(frame.head.kind)) queued_bytes_ -= frame.head.bytes;
  if (frame.owes_completion) CompleteOp(frame.op, absl::OkStatus());
}

}  // namespace kvxfer::tcp
