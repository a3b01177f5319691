// TcpEndpoint: rails in the hands of data threads. A rail is lent while the endpoint is up and the
// agent has authorised it, and is back home before it is closed.

#include <utility>

#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/endpoint.h"

namespace kvxfer::tcp {

void TcpEndpoint::LendRails() {
  if (!authorized_ || !backend_->threads().asked_for()) return;
  for (uint32_t i = 0; i < rails(); ++i) {
    if (!AtHome(i) || !rails_[i]->up() || rails_[i]->hung_up()) continue;
    lent_[i] = backend_->threads().Lend(rails_[i].get(), this);
  }
}

void TcpEndpoint::Recall(uint32_t rail) {
  if (AtHome(rail)) return;
  // The caller closes the rail, and a socket that nobody watches is closed like any other.
  backend_->threads().Recall(std::exchange(lent_[rail], nullptr), this).IgnoreError();
}

void TcpEndpoint::RecallAll() {
  for (uint32_t i = 0; i < rails(); ++i) Recall(i);
}

void TcpEndpoint::LeaveThreads() {
  if (backend_ == nullptr) return;
  for (auto& lent : lent_) {
    if (lent != nullptr) backend_->threads().Drop(std::move(lent), this);
  }
  backend_->threads().Forget(this);
}

void TcpEndpoint::OnLentFailed(uint32_t rail, uint32_t life, const absl::Status& why) {
  // The peer's own reason may be on the control stream, and is better.
  if (up()) ReceiveFrames(/*look=*/true);
  if (!down() && rails_[rail]->up() && rails_[rail]->life() == life) RailFailed(rail, why);
}

}  // namespace kvxfer::tcp
