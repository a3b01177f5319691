// TcpEndpoint: fences. A fence sends a marker on every stream that is up; nothing of the transfer
// follows the marker on its stream. The marker on the control stream names, for each rail, the last
// life that may have carried the transfer. So a stream that breaks before its marker was sent is
// not waited for, and a later life is not mistaken for it.

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/endpoint.h"

namespace kvxfer::tcp {

void TcpEndpoint::Fence(FenceScope scope) {
  if (scope.transfer == FenceScope::kEveryTransfer) return FenceRail(scope.rail);
  FenceTransfer(scope.transfer);
}

void TcpEndpoint::EmitFenced(FenceScope scope, uint32_t answers) {
  if (answers == 0) return;
  if (!connecting() && scope.transfer != FenceScope::kEveryTransfer) {
    AllowAgain(scope.transfer);
  }
  for (; answers > 0; --answers) {
    Say(EventKind::kFenced, scope.transfer, {}, scope.rail);
  }
}

// Nothing of the transfer comes any more. So a lent rail, for whose step one would have to wait,
// hears of it with the next fence.
void TcpEndpoint::AllowAgain(uint64_t transfer) {
  bool lent = false;
  for (uint32_t i = 0; i < rails(); ++i) {
    lent |= !AtHome(i);
    if (AtHome(i)) rails_[i]->Allow(transfer);
  }
  if (lent) answered_.push_back(transfer);
}

void TcpEndpoint::FenceTransfer(uint64_t transfer) {
  if (down()) return;
  if (!connecting()) {
    for (uint32_t i = 0; i < rails(); ++i) {
      const Held rail = Hold(i);
      for (const uint64_t answered : answered_) rail->Allow(answered);
      rail->Discard(transfer);
    }
    answered_.clear();
    const uint32_t answers = fences_.Ask(transfer);
    // What arrived before is reported first; a marker among it may be the answer.
    backend_->threads().DeliverAll();
    return EmitFenced({.transfer = transfer}, answers);
  }
  const absl::Status why =
      absl::CancelledError(absl::StrCat(Where(), ": transfer ", transfer, " was fenced"));
  for (uint32_t i = 0; i < rails(); ++i) {
    const Held rail = Hold(i);
    rail->CancelOps(transfer, why);
    if (rail->up()) rail->PushMarker(transfer);
    if (!AtHome(i)) lent_[i]->Activate();
  }
  backend_->threads().DeliverAll();
  PushInlineMarker(transfer);
  Activate();
  // The ops are over and their memory is released, so this side is quiet already. The markers may
  // still wait for the sockets.
  EmitFenced({.transfer = transfer});
}

}  // namespace kvxfer::tcp
