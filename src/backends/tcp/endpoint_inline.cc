// TcpEndpoint: small writes on the control stream. The bytes and the message about them leave with
// one system call and arrive with one.

#include <array>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/endpoint.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer::tcp {
namespace {

// If more than this waits on the control stream, a write goes over its rail, so that messages are
// not delayed.
constexpr size_t kMaxInlineQueued = 64 * 1024;

// A stopped peer is not one that ignores its messages: every transfer may end while it is stopped
// and leave a marker here. All of these must fit without the peer counting as one that does not
// read (kMaxUnsent).
constexpr size_t kMaxMarkerBytes =
    net::kControlHeadBytes + kFrameHeadBytes + kMaxRails * kLifeBytes;
static_assert(kMaxSessionTransfers * kMaxMarkerBytes + kMaxInlineQueued +
                  net::ControlStream::kMaxQueued <
              net::ControlStream::kMaxUnsent);

WireRun RunAt(std::span<const std::byte> runs, size_t i) {
  return DecodeWireRun(runs.subspan(i * kWireRunBytes).first<kWireRunBytes>());
}

}  // namespace

// Copies a small write into the control stream, after which the op is over. False: it must go over
// its rail.
bool TcpEndpoint::PostInline(const Op& op) {
  const size_t bytes = op.blocks.bytes;
  if (op.kind != OpKind::kWrite || bytes > kMaxInlineBytes || !control().writable()) return false;
  // The frame needs its size first, which depends on how many runs there are.
  absl::InlinedVector<Run, kMaxInlineRuns> runs;
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    if (runs.size() == kMaxInlineRuns) return false;
    runs.push_back(walk.run());
  }
  const size_t size = kFrameHeadBytes + runs.size() * kWireRunBytes + bytes + kTrailerBytes;
  if (control().queued_bytes() + size > kMaxInlineQueued) return false;
  std::span<std::byte> at = control().Append(ControlKind::kFrame, size);
  const auto take = [&at](size_t n) { return std::exchange(at, at.subspan(n)).first(n); };
  Encode(FrameHead{.kind = FrameKind::kWrite,
                   .runs = static_cast<uint16_t>(runs.size()),
                   .bytes = static_cast<uint32_t>(bytes),
                   .transfer = op.transfer,
                   .number = op.rail},
         take(kFrameHeadBytes).first<kFrameHeadBytes>());
  for (const Run& run : runs) {
    Encode(WireRun{.address = run.remote,
                   .bytes = static_cast<uint32_t>(run.bytes),
                   .rkey = static_cast<const net::RkeyOnly*>(run.key)->rkey()},
           take(kWireRunBytes).first<kWireRunBytes>());
  }
  for (const Run& run : runs) {
    std::memcpy(take(run.bytes).data(), reinterpret_cast<const void*>(run.local), run.bytes);
  }
  Encode(Trailer{.valid = true, .has_immediate = op.has_immediate, .immediate = op.immediate},
         take(kTrailerBytes).first<kTrailerBytes>());
  OnCompletion(op.id, op.rail, absl::OkStatus());
  Activate();
  return true;
}

void TcpEndpoint::PushInlineMarker(uint64_t transfer) {
  std::span<std::byte> at =
      control().Append(ControlKind::kFrame, kFrameHeadBytes + rails_.size() * kLifeBytes);
  Encode(FrameHead{.kind = FrameKind::kFence, .transfer = transfer}, at.first<kFrameHeadBytes>());
  at = at.subspan(kFrameHeadBytes);
  for (const auto& rail : rails_) {
    EncodeLife(rail->last_up(), at.first<kLifeBytes>());
    at = at.subspan(kLifeBytes);
  }
}

void TcpEndpoint::OnInlineMarker(uint64_t transfer, std::span<const std::byte> lives) {
  std::array<uint32_t, kMaxRails> through{};
  for (size_t i = 0; i < rails(); ++i) {
    through[i] = DecodeLife(lives.subspan(i * kLifeBytes).first<kLifeBytes>());
  }
  // The control stream's number is rails().
  EmitFenced({.transfer = transfer},
             fences_.OnMarker(transfer, rails(), std::span(through).first(rails())));
}

absl::Status TcpEndpoint::OnInlineFrame(std::span<const std::byte> frame) {
  if (!up()) return absl::InvalidArgumentError("the peer sent a data frame before the link is up");
  if (frame.size() < kFrameHeadBytes) {
    return absl::InvalidArgumentError("a data frame is cut off");
  }
  absl::StatusOr<FrameHead> head = DecodeFrameHead(frame.first<kFrameHeadBytes>());
  if (!head.ok()) return head.status();
  frame = frame.subspan(kFrameHeadBytes);
  if (head->kind == FrameKind::kFence && frame.size() == rails() * kLifeBytes) {
    OnInlineMarker(head->transfer, frame);
    return absl::OkStatus();
  }
  if (head->kind != FrameKind::kWrite || head->bytes > kMaxInlineBytes ||
      head->runs > kMaxInlineRuns || head->number >= rails() ||
      frame.size() != head->runs * kWireRunBytes + head->bytes + kTrailerBytes) {
    return absl::InvalidArgumentError("a data frame that does not belong on the control stream");
  }
  absl::StatusOr<Trailer> trailer = DecodeTrailer(frame.last<kTrailerBytes>());
  if (!trailer.ok()) return trailer.status();
  // A fenced write is parsed and dropped: the stream must stay in step.
  if (fences_.IsFenced(head->transfer)) return absl::OkStatus();
  const size_t runs = head->runs * kWireRunBytes;
  absl::Status received = LandInline(*head, frame.first(runs), frame.subspan(runs, head->bytes));
  if (!received.ok()) return received;
  if (trailer->valid && trailer->has_immediate) {
    OnImmediate(static_cast<uint32_t>(head->number), trailer->immediate);
  }
  return absl::OkStatus();
}

// Checks every run before the first byte is written.
absl::Status TcpEndpoint::LandInline(const FrameHead& head, std::span<const std::byte> runs,
                                     std::span<const std::byte> payload) {
  uint64_t total = 0;
  for (size_t i = 0; i < head.runs; ++i) {
    const WireRun run = RunAt(runs, i);
    total += run.bytes;
    absl::StatusOr<const net::Region*> held = Check(run, Access::kRemoteWrite);
    if (!held.ok()) return Annotate(held.status(), "remote write refused");
  }
  if (total != head.bytes) {
    return absl::InvalidArgumentError("the runs of a data frame do not add up to its payload");
  }
  for (size_t i = 0; i < head.runs; ++i) {
    const WireRun run = RunAt(runs, i);
    if (run.bytes == 0) continue;
    std::memcpy(reinterpret_cast<void*>(run.address), payload.data(), run.bytes);
    payload = payload.subspan(run.bytes);
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::tcp
