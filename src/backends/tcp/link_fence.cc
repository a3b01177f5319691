// Fences of a link: in-band markers on every stream that is up, after which nothing of a transfer
// follows. The one on the control stream says which lives of the others may have carried it, so
// that a stream which breaks before its marker is out is not waited for, nor a later one mistaken
// for it.

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
  // Its ops are over and their memory is let go. The markers may have to wait for the sockets.
  Emit(EventKind::kFenced, transfer);
}

void Link::OnMarker(uint64_t transfer, uint32_t rail, std::span<const uint32_t> through) {
  for (uint32_t n = fences_.OnMarker(transfer, rail, through); n > 0; --n) {
    Emit(EventKind::kFenced, transfer);
  }
}

}  // namespace kvxfer::tcp
