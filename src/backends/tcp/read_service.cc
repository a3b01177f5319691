// TcpRail: the accepting side serves reads. A checked request becomes a response frame in the
// rail's queue and is sent from the region like any other frame. A rail that serves enough is not
// read, so further requests wait at the peer.

#include <array>
#include <memory>
#include <utility>

#include "src/backends/tcp/rail.h"
#include "src/core/base/strings.h"

namespace kvxfer::tcp {
namespace {

constexpr uint64_t kMaxServedBytes = 2 * kMaxFrameBytes;
constexpr size_t kMaxServedFrames = 8;

}  // namespace

bool TcpRail::Paused() const {
  return !connecting_ && (queued_bytes_ >= kMaxServedBytes || out_.size() >= kMaxServedFrames);
}

absl::Status TcpRail::OnReadRuns() {
  Outgoing response;
  response.head = {
      .kind = FrameKind::kReadResponse, .transfer = head_.transfer, .number = head_.number};
  if (discard_) {
    response.voided = true;
  } else {
    absl::StatusOr<std::unique_ptr<Served>> served = Serve();
    if (!served.ok()) return served.status();
    response.served = *std::move(served);
    response.head.bytes = head_.bytes;
    response.short_runs = AreShort(head_.bytes, head_.runs);
    response.payload =
        RunWalk({.view = &response.served->view, .bytes = head_.bytes, .pieces = head_.runs});
  }
  queued_bytes_ += response.head.bytes;
  out_.push_back(std::move(response));
  stage_ = Stage::kHead;
  return absl::OkStatus();
}

// The runs that the peer asks for, after checking each of them.
absl::StatusOr<std::unique_ptr<TcpRail::Served>> TcpRail::Serve() const {
  // A response has no remote addresses.
  static constexpr std::array<const RemoteKey*, 1> kNoKey{};
  auto served = std::make_unique<Served>();
  served->blocks.reserve(head_.runs);
  served->regions.reserve(head_.runs);
  for (uint32_t i = 0; i < head_.runs; ++i) {
    const WireRun run = RunAt(i);
    absl::StatusOr<const net::Region*> held = host_->Check(run, Access::kRemoteRead);
    if (!held.ok()) return Annotate(held.status(), "remote read refused");
    served->blocks.push_back(
        {.local = run.address, .bytes = run.bytes, .local_region = i, .remote_region = 0});
    served->regions.push_back(*held);
  }
  served->view = {.descriptors = served->blocks, .registrations = served->regions, .keys = kNoKey};
  return served;
}

}  // namespace kvxfer::tcp
