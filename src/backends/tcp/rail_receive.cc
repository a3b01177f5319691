// TcpRail: receiving on one data stream. Heads and runs go through a staging buffer, payload goes
// straight to its destination.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/rail.h"
#include "src/core/base/strings.h"
#include "src/transport/host/hidden_move.h"

namespace kvxfer::tcp {
namespace {

// The most payload that one read moves between two looks at the control stream.
constexpr size_t kMaxLanding = 256 * 1024;
// How much is read beyond what is needed, so that a small frame takes one system call and the head
// of the next frame arrives with the end of this one. Payload in it is copied once more.
constexpr size_t kReadAhead = StagePool::kReadAhead;

}  // namespace

size_t TcpRail::StageBytes() const {
  // How many staged bytes the next step needs.
  switch (stage_) {
    case Stage::kHead:
      return kFrameHeadBytes;
    case Stage::kRuns:
      return head_.runs * kWireRunBytes;
    case Stage::kPayload:
      return 1;
    case Stage::kTrailer:
      return kTrailerBytes;
  }
  return 0;
}

bool TcpRail::CanReceive() const {
  if (stage_ == Stage::kHead && Paused()) return false;
  return readable() || staged() >= StageBytes();
}

absl::Status TcpRail::WhyHungUp() const {
  const int error = net::SocketError(fd());
  return absl::UnavailableError(error != 0 ? ErrnoText("connection lost", error)
                                           : "the peer closed the connection (end of file)");
}

absl::Status TcpRail::Receive(size_t budget) {
  absl::Status status = ReceiveSome(budget);
  // Between two frames, and in a payload that is received in place, nothing is staged.
  if (in_ != nullptr && staged() == 0) {
    in_begin_ = in_end_ = 0;
    host_->stages().Give(std::move(in_));
  }
  return status;
}

absl::Status TcpRail::ReceiveSome(size_t budget) {
  while (up() && host_->CanTakeEvents()) {
    if (stage_ == Stage::kHead && Paused()) break;
    absl::StatusOr<bool> parsed = ParseStaged();
    if (!parsed.ok()) return parsed.status();
    if (*parsed) continue;
    if (!readable() || budget == 0) break;
    if (!host_->MayRead() || !up()) break;
    absl::StatusOr<size_t> n = ReadMore();
    if (!n.ok()) return n.status();
    budget -= std::min(budget, *n);
  }
  return absl::OkStatus();
}

// One step with the staged bytes. False: more bytes are needed.
absl::StatusOr<bool> TcpRail::ParseStaged() {
  if (staged() < StageBytes()) return false;
  absl::Status status;
  switch (stage_) {
    case Stage::kHead:
      status = OnHead();
      break;
    case Stage::kRuns:
      status = OnRuns();
      break;
    case Stage::kPayload:
      LandStaged();
      break;
    case Stage::kTrailer:
      status = OnTrailer();
      break;
  }
  if (!status.ok()) return status;
  return true;
}

absl::StatusOr<size_t> TcpRail::ReadMore() {
  if (in_ == nullptr) in_ = host_->stages().Take();
  return stage_ == Stage::kPayload ? ReadPayload() : ReadStaged();
}

absl::StatusOr<size_t> TcpRail::ReadStaged() {
  std::memmove(in_.get(), in_.get() + in_begin_, staged());
  in_end_ -= in_begin_;
  in_begin_ = 0;
  const size_t wanted = std::max(StageBytes() - staged(), kReadAhead);
  std::array<iovec, 1> piece{
      iovec{in_.get() + in_end_, std::min(wanted, StagePool::kBytes - in_end_)}};
  absl::StatusOr<size_t> n = Read(piece);
  if (n.ok()) in_end_ += *n;
  return n;
}

// Reads payload; nothing is staged. Payload goes to its destination; or to the scratch buffer, if
// it must not be written or its runs are short. What follows the payload is staged.
absl::StatusOr<size_t> TcpRail::ReadPayload() {
  std::array<iovec, kMaxIovecs> pieces;
  size_t n = 0;
  size_t payload = 0;
  const std::span<std::byte> scratch = host_->scratch();
  const bool through_scratch = discard_ || AreShort(head_.bytes, landings_.size());
  if (through_scratch) {
    payload = std::min(payload_left_, scratch.size());
    pieces[n++] = {scratch.data(), payload};
  } else {
    size_t received = received_;
    for (size_t i = landing_; i < landings_.size() && payload < kMaxLanding; ++i) {
      if (n == pieces.size() - 1) break;
      const size_t bytes = std::min(landings_[i].bytes - received, kMaxLanding - payload);
      pieces[n++] = {landings_[i].data + received, bytes};
      payload += bytes;
      received = 0;
    }
  }
  in_begin_ = in_end_ = 0;
  if (payload == payload_left_) pieces[n++] = {in_.get(), kReadAhead};
  absl::StatusOr<size_t> got = Read(std::span(pieces).first(n));
  if (!got.ok()) return got;
  const size_t received = std::min(*got, payload);
  in_end_ = *got - received;
  if (through_scratch) {
    Land(scratch.first(received));
  } else {
    SkipReceived(received);
  }
  return got;
}

void TcpRail::LandStaged() {
  const size_t bytes = std::min(staged(), payload_left_);
  Land({in_.get() + in_begin_, bytes});
  in_begin_ += bytes;
}

// Writes the next bytes of the payload to their destinations.
void TcpRail::Land(std::span<const std::byte> bytes) {
  while (!discard_ && !bytes.empty()) {
    const Landing& to = landings_[landing_];
    const size_t step = std::min(bytes.size(), to.bytes - received_);
    {
      const HiddenMove moves;
      std::memcpy(to.data + received_, bytes.data(), step);
    }
    bytes = bytes.subspan(step);
    SkipReceived(step);
  }
  SkipReceived(bytes.size());
}

// `bytes` of the payload are done.
void TcpRail::SkipReceived(size_t bytes) {
  payload_left_ -= bytes;
  if (payload_left_ == 0) stage_ = Stage::kTrailer;
  if (discard_) return;
  received_ += bytes;
  while (landing_ < landings_.size() && received_ >= landings_[landing_].bytes) {
    received_ -= landings_[landing_].bytes;
    ++landing_;
  }
}

absl::Status TcpRail::OnHead() {
  const std::span<const std::byte> bytes(in_.get() + in_begin_, staged());
  absl::StatusOr<FrameHead> head = DecodeFrameHead(bytes.first<kFrameHeadBytes>());
  if (!head.ok()) return head.status();
  in_begin_ += kFrameHeadBytes;
  head_ = *head;
  discard_ = false;
  landings_.clear();
  // Only the connecting side receives read responses, and only the accepting side everything else.
  if ((head_.kind == FrameKind::kReadResponse) != connecting_) {
    return absl::InvalidArgumentError("the peer sent a data frame that is not its to send");
  }
  switch (head_.kind) {
    case FrameKind::kFence:
      host_->OnMarker(head_.transfer, index_);
      return absl::OkStatus();
    case FrameKind::kReadResponse:
      return OnResponse();
    case FrameKind::kWrite:
    case FrameKind::kReadRequest:
      discard_ = !fenced_.empty() && fenced_.contains(head_.transfer);
      stage_ = Stage::kRuns;
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

WireRun TcpRail::RunAt(size_t i) const {
  const std::byte* at = in_.get() + in_begin_ + i * kWireRunBytes;
  return DecodeWireRun(std::span<const std::byte, kWireRunBytes>(at, kWireRunBytes));
}

absl::Status TcpRail::OnRuns() {
  uint64_t total = 0;
  for (size_t i = 0; i < head_.runs; ++i) total += RunAt(i).bytes;
  if (total != head_.bytes) {
    return absl::InvalidArgumentError("the runs of a data frame do not add up to its payload");
  }
  absl::Status status = head_.kind == FrameKind::kWrite ? OnWriteRuns() : OnReadRuns();
  in_begin_ += head_.runs * kWireRunBytes;
  return status;
}

// Checks every run of the frame before the first byte is written. A fenced frame is not checked:
// its region may be gone.
absl::Status TcpRail::OnWriteRuns() {
  for (size_t i = 0; i < head_.runs && !discard_; ++i) {
    const WireRun run = RunAt(i);
    absl::StatusOr<const net::Region*> held = host_->Check(run, Access::kRemoteWrite);
    if (!held.ok()) return Annotate(held.status(), "remote write refused");
    if (run.bytes == 0) continue;
    landings_.push_back({reinterpret_cast<std::byte*>(run.address), run.bytes, *held});
  }
  StartPayload();
  return absl::OkStatus();
}

void TcpRail::StartPayload() {
  payload_left_ = head_.bytes;
  landing_ = received_ = 0;
  stage_ = payload_left_ > 0 ? Stage::kPayload : Stage::kTrailer;
}

absl::Status TcpRail::OnResponse() {
  // Responses arrive in the order of their requests. This one answers a read that was cancelled.
  if (reads_.empty() || head_.number < reads_.front().number) {
    discard_ = true;
    StartPayload();
    return absl::OkStatus();
  }
  // The request would still be sent from blocks that the application frees with the answer.
  if (head_.number > requested_) {
    return absl::InvalidArgumentError("the peer answered a read before it was asked for it");
  }
  if (head_.number > reads_.front().number) {
    return absl::InvalidArgumentError("the peer answered reads out of order");
  }
  const PendingRead& read = reads_.front();
  // 0 bytes: the peer does not serve the read, and its trailer says void.
  if (head_.bytes != read.blocks.bytes && head_.bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the peer answered a read of ",
                                                   read.blocks.bytes, " bytes with ", head_.bytes));
  }
  for (RunWalk walk(read.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    landings_.push_back({reinterpret_cast<std::byte*>(run.local), run.bytes, nullptr});
  }
  StartPayload();
  return absl::OkStatus();
}

absl::Status TcpRail::OnTrailer() {
  const std::span<const std::byte> bytes(in_.get() + in_begin_, staged());
  absl::StatusOr<Trailer> trailer = DecodeTrailer(bytes.first<kTrailerBytes>());
  if (!trailer.ok()) return trailer.status();
  in_begin_ += kTrailerBytes;
  stage_ = Stage::kHead;
  if (discard_) return absl::OkStatus();
  if (head_.kind == FrameKind::kWrite) {
    if (trailer->valid && trailer->has_immediate) host_->OnImmediate(index_, trailer->immediate);
    return absl::OkStatus();
  }
  const PendingRead read = reads_.front();
  if (trailer->valid && head_.bytes != read.blocks.bytes) {
    return absl::InvalidArgumentError("the peer answered a read without its bytes");
  }
  reads_.pop_front();
  CompleteOp(read.op, trailer->valid ? absl::OkStatus()
                                     : absl::CancelledError("the peer stopped serving the read"));
  return absl::OkStatus();
}

void TcpRail::CompleteOp(uint64_t op, absl::Status status) {
  host_->OnCompletion(op, index_, std::move(status));
}

}  // namespace kvxfer::tcp
