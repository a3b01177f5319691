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
  for (; answers > 0; --answers) {
    Say(EventKind::kFenced, scope.transfer, {}, scope.rail);
  }
}

void TcpEndpoint::FenceTransfer(uint64_t transfer) {
  if (down()) return;
  if (!connecting()) {
    for (const auto& rail : rails_) rail->Discard(transfer);
    return EmitFenced({.transfer = transfer}, fences_.Ask(transfer));
  }
  const absl::Status why =
      absl::CancelledError(absl::StrCat(Where(), ": transfer ", transfer, " was fenced"));
  for (const auto& rail : rails_) {
    rail->CancelOps(transfer, why);
    if (rail->up()) rail->PushMarker(transfer);
  }
  PushInlineMarker(transfer);
  Activate();
  // The ops are over and their memory is released, so this side is quiet already. The markers may
  // still wait for the sockets.
  EmitFenced({.transfer = transfer});
}

void TcpEndpoint::OnMarker(uint64_t transfer, uint32_t rail, std::span<const uint32_t> through) {
  EmitFenced({.transfer = transfer}, fences_.OnMarker(transfer, rail, through));
}

}  // namespace kvxfer::tcp
