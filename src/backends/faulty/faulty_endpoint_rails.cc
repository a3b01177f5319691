// FaultyEndpoint: rails that fail alone and come back.
#include <utility>

#include "src/backends/faulty/faulty_backend.h"
#include "src/backends/faulty/faulty_endpoint.h"
#include "src/core/base/strings.h"

namespace kvxfer::faulty {

// The inner endpoint has come up, or was accepted.
void FaultyEndpoint::Start(bool connecting) {
  const EndpointInfo inner = inner_->Describe();
  rails_.Start(static_cast<uint32_t>(inner.rails.size()), connecting, Now());
  if (!connecting) return;
  for (const RailInfo& rail : inner.rails) inner_up_.push_back(rail.up);
}

// Also true of a rail that does not exist, and on the accepting side: the inner endpoint ends such
// ops with its error. Before kConnected no rail is up.
bool FaultyEndpoint::RailUp(uint32_t rail) const {
  const bool connected = accepted_ || !inner_up_.empty();
  return connected && (rail >= inner_up_.size() || inner_up_[rail]) && rails_.up(rail);
}

uint32_t FaultyEndpoint::rail_distance(uint32_t rail, const Registration& local,
                                       const RemoteKey& remote) const {
  return inner_ == nullptr ? 0 : inner_->rail_distance(rail, local, remote);
}

void FaultyEndpoint::FenceRail(uint32_t rail) {
  if (!rails_.enabled()) return inner_->Fence({.rail = rail});
  // A fence of a transfer that does not exist: it passes behind everything of the rail.
  inner_->Fence({.transfer = rails_.NextMarker(rail)});
}

void FaultyEndpoint::ReopenRail(uint32_t rail) {
  if (phase_ != Phase::kOpen) return;
  if (!rails_.enabled()) return inner_->ReopenRail(rail);
  rails_.Reopen(rail, Now());
}

// An event on one of the inner endpoint's own rails.
void FaultyEndpoint::OnInnerRail(Event event) {
  if (rails_.enabled() && event.kind == EventKind::kRailDown) {
    // A fence could not be assigned to one of the two failures.
    return Shutdown(absl::UnavailableError(
        absl::StrCat("rail ", event.rail,
                     " failed while failures of rails are injected: ", event.status.message())));
  }
  if (event.rail < inner_up_.size()) inner_up_[event.rail] = event.kind == EventKind::kRailUp;
  // Ops held for this rail never reached it, and must complete before kRailDown is reported.
  if (event.kind == EventKind::kRailDown) FailRail(event.rail);
  FlushIncoming();
  backend_->Report({.event = std::move(event), .message = {}});
}

void FaultyEndpoint::OnInnerFenced(Event event) {
  const auto rail = RailFaults::RailOfMarker(event.id);
  // On the connecting side a rail's fence ends the inner transfer and has nothing to report.
  if (rail.has_value() && !accepted_) return;
  // A held immediate does not say whose transfer it is, so all of them are reported first.
  FlushIncoming();
  if (rail.has_value()) {
    event.id = FenceScope::kEveryTransfer;
    event.rail = *rail;
  }
  Pending pending;
  pending.event = std::move(event);
  backend_->Report(std::move(pending));
}

void FaultyEndpoint::FailRail(uint32_t rail) {
  for (const HeldOp& held : ExtractHeldOps([&](const HeldOp& h) { return h.op.rail == rail; })) {
    backend_->Report(
        Completion(held.op, absl::UnavailableError(absl::StrCat("rail ", rail, " failed: op ",
                                                                held.op.id, " was not executed"))));
  }
}

void FaultyEndpoint::ProgressRails(Time now) {
  if (phase_ != Phase::kOpen) return;
  while (const auto rail = rails_.TakeDown()) {
    // Completions of the rail may be held here.
    FlushIncoming();
    inner_->Fence({.transfer = rails_.NextMarker(*rail)});
    backend_->Report(
        {.event = MakeEvent(
             EventKind::kRailDown, this, 0,
             absl::UnavailableError(absl::StrCat("injected failure of rail ", *rail)), *rail),
         .message = {}});
  }
  while (const auto rail = rails_.TakeUp(now)) {
    backend_->Report({.event = MakeEvent(EventKind::kRailUp, this, 0, {}, *rail), .message = {}});
  }
}

}  // namespace kvxfer::faulty
