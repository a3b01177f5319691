// TcpRail: ending transfers on one data stream.

#include <algorithm>
#include <utility>

#include "src/backends/tcp/rail.h"

namespace kvxfer::tcp {

void TcpRail::CancelOps(uint64_t transfer, const absl::Status& why) {
  const auto concerned = [transfer](uint64_t other) { return transfer == 0 || other == transfer; };
  if (begun() && concerned(out_.front().head.transfer)) {
    Outgoing& frame = out_.front();
    // The op completes here, so its blocks must no longer be read: the rest of the payload is
    // filler.
    frame.voided = true;
    if (std::exchange(frame.owes_completion, false)) CompleteOp(frame.op, why);
  }
  // Frames that have not begun are removed, except markers, which the peer waits for.
  const auto unbegun = out_.begin() + (begun() ? 1 : 0);
  const auto end = std::remove_if(unbegun, out_.end(), [&](const Outgoing& frame) {
    if (frame.head.kind == FrameKind::kFence || !concerned(frame.head.transfer)) return false;
    if (frame.head.kind == FrameKind::kWrite) queued_bytes_ -= frame.head.bytes;
    if (frame.owes_completion) CompleteOp(frame.op, why);
    return true;
  });
  out_.erase(end, out_.end());

  // The response to a read of this transfer is arriving: its rest must not be written.
  if (head_.kind == FrameKind::kReadResponse && stage_ != Stage::kHead && !reads_.empty() &&
      reads_.front().number == head_.number && concerned(reads_.front().transfer)) {
    discard_ = true;
  }
  std::erase_if(reads_, [&](const PendingRead& read) {
    if (!concerned(read.transfer)) return false;
    CompleteOp(read.op, why);
    return true;
  });
}

void TcpRail::Discard(uint64_t transfer) {
  fenced_.insert(transfer);
  if (stage_ != Stage::kHead && head_.transfer == transfer) discard_ = true;
  for (Outgoing& response : out_) {
    if (response.head.transfer == transfer) response.voided = true;
  }
}

void TcpRail::Allow(uint64_t transfer) { fenced_.erase(transfer); }

bool TcpRail::ReleaseRegion(const net::Region* region) {
  for (Outgoing& response : out_) {
    // The response still goes out, as a void frame: the peer waits for it.
    if (response.served == nullptr) continue;
    if (std::ranges::find(response.served->regions, region) != response.served->regions.end()) {
      response.voided = true;
    }
  }
  const auto into = [region](const Landing& l) { return l.region == region; };
  return stage_ != Stage::kPayload || discard_ ||
         std::none_of(landings_.begin(), landings_.end(), into);
}

}  // namespace kvxfer::tcp
