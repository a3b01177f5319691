// Link: fences. A fence sends a marker on every stream that is up; nothing of the transfer follows
// the marker on its stream. The marker on the control stream names, for each rail, the last life
// that may have carried the transfer. So a stream that breaks before its marker was sent is not
// waited for, and a later life is not mistaken for it.

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/link.h"

namespace kvxfer::tcp {

void Link::Fence(uint64_t transfer) {
  if (down() || transfer == 0) return;
  if (side_ == Side::kAccepting) {
    for (const auto& rail : rails_) rail->Discard(transfer);
    for (uint32_t n = fences_.Ask(transfer); n > 0; --n) Emit(EventKind::kFenced, transfer);
    return;
  }
  const absl::Status why = absl::CancelledError(
      absl::StrCat("tcp peer ", Name(), ": transfer ", transfer, " was fenced"));
  for (const auto& rail : rails_) {
    rail->CancelOps(transfer, why);
    if (rail->up()) rail->PushMarker(transfer);
  }
  PushInlineMarker(transfer);
  Activate();
  // The ops are over and their memory is released, so this side is quiet already. The markers may
  // still wait for the sockets.
  Emit(EventKind::kFenced, transfer);
}

void Link::OnMarker(uint64_t transfer, uint32_t rail, std::span<const uint32_t> through) {
  for (uint32_t n = fences_.OnMarker(transfer, rail, through); n > 0; --n) {
    Emit(EventKind::kFenced, transfer);
  }
}

}  // namespace kvxfer::tcp
