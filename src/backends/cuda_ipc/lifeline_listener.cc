#include "src/backends/cuda_ipc/lifeline_listener.h"

#include <algorithm>
#include <utility>

namespace kvxfer::cuda_ipc {

void LifelineListener::Close() {
  waiting_.clear();
  listener_.Close();
}

bool LifelineListener::HasWork() const {
  return listener_.HasWork() ||
         std::ranges::any_of(waiting_, [](const auto& one) { return one->HasWork(); });
}

void LifelineListener::Work() {
  listener_.Work();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = (*it)->HasWork() && !Hear(*it) ? waiting_.erase(it) : std::next(it);
  }
}

void LifelineListener::OnAccepted(net::Fd socket, const net::Credentials& /*peer*/) {
  absl::StatusOr<std::unique_ptr<Lifeline>> lifeline = Lifeline::Adopt(reactor_, std::move(socket));
  if (!lifeline.ok()) return;
  if (waiting_.size() == kMaxWaiting) waiting_.pop_front();
  waiting_.push_back(*std::move(lifeline));
}

bool LifelineListener::EndOldestSilent() {
  if (waiting_.empty()) return false;
  waiting_.pop_front();
  return true;
}

bool LifelineListener::Hear(std::unique_ptr<Lifeline>& lifeline) {
  Lifeline::Packet packet;
  const Lifeline::Got got = lifeline->Receive(packet);
  if (got == Lifeline::Got::kNothing) return true;
  const auto dial = wire::TryDecode<DialPacket>(packet.body);
  if (got == Lifeline::Got::kPacket && packet.type == PacketType::kDial && dial) {
    owner_->OnDial(std::move(lifeline), *dial);
  }
  return false;
}

}  // namespace kvxfer::cuda_ipc
