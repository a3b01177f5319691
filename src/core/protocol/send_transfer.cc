#include "src/core/protocol/send_transfer.h"

#include <cassert>

namespace kvxfer {

SendTransfer::SendTransfer(Request&& request, uint64_t order)
    : request_(std::move(request)), order_(order) {
  if (request_.moves) book_ = SendBook(std::exchange(request_.lanes, std::nullopt));
  if (request_.lease != nullptr) {
    state_ = SendState::kLeasing;
  } else if (!request_.moves && !request_.held) {
    state_ = SendState::kSent;
  }
}

std::optional<SendTransfer::Offered> SendTransfer::Offer(uint32_t rail, SlotSupply& slots) {
  if (!book_.OpenLane(*slice_, rail, slots.pool(), id())) {
    slots.Request();
    return std::nullopt;
  }
  return Offered{.immediate = book_.ImmediateFor(*slice_, rail),
                 .sole = slices_ == 0 && book_.counted() && book_.IsLast(*slice_) &&
                         !book_.awaits_discarded()};
}

void SendTransfer::OnAccepted(uint32_t rail) {
  book_.OnPosted(*std::exchange(slice_, std::nullopt), rail);
  ++ops_;
  ++slices_;
}

std::optional<SendBook::Closing> SendTransfer::NextToClose() const {
  if (!sending() || !counted() || !book_.posted()) return std::nullopt;
  return book_.NextToClose();
}

void SendTransfer::OnClosed(uint32_t rail) {
  book_.OnClosed(rail);
  ++ops_;
}

bool SendTransfer::AllPosted() const {
  if (!sending() || request_.held) return false;
  return book_.posted() && !book_.NextToClose().has_value();
}

void SendTransfer::Become(SendState to) {
  assert(IsLegal(state_, to));
  state_ = to;
}

}  // namespace kvxfer
