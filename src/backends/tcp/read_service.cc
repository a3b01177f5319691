// Rail: the accepting side serves reads. A checked request becomes a response frame in the rail's
// queue and is sent from the region like any other frame. A rail that serves enough is not read, so
// further requests wait at the peer.

#include <utility>

#include "src/backends/tcp/link.h"
#include "src/backends/tcp/rail.h"
#include "src/core/base/strings.h"

namespace kvxfer::tcp {
namespace {

constexpr uint64_t kMaxServedBytes = 2 * kMaxFrameBytes;
constexpr size_t kMaxServedFrames = 8;

}  // namespace

bool Rail::Paused() const {
  return !link_->connecting() &&
         (queued_bytes_ >= kMaxServedBytes || out_.size() >= kMaxServedFrames);
}

absl::Status Rail::OnReadRuns() {
  Outgoing response;
  response.head = {
      .kind = FrameKind::kReadResponse, .transfer = head_.transfer, .number = head_.number};
  if (discard_) {
    response.voided = true;
  } else {
    response.head.bytes = head_.bytes;
    response.served.reserve(head_.runs);
    for (size_t i = 0; i < head_.runs; ++i) {
      const WireRun run = RunAt(i);
      absl::StatusOr<const net::Region*> held = link_->regions().Check(run, Access::kRemoteRead);
      if (!held.ok()) return Annotate(held.status(), "remote read refused");
      response.served.push_back({.local = run.address, .bytes = run.bytes, .registration = *held});
    }
    response.runs = response.served;
  }
  queued_bytes_ += response.head.bytes;
  out_.push_back(std::move(response));
  stage_ = Stage::kHead;
  return absl::OkStatus();
}

}  // namespace kvxfer::tcp
