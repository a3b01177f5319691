#include "src/transport/sockets/linger.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "src/core/base/descriptor_share.h"

namespace kvxfer::net {
namespace {

// A peer that keeps sending must not keep Poll from other work, or from this endpoint's own
// time-out.
constexpr int kReadsPerTurn = 16;

}  // namespace

Linger::Linger(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued)
    : reactor_(reactor),
      control_(std::move(control)),
      data_(std::move(data)),
      queued_(std::move(queued)),
      deadline_(Now() + kTimeout) {
  // If it cannot be watched, the deadline still closes it.
  reactor_->Add(control_.get(), this).IgnoreError();
}

Linger::~Linger() { reactor_->Remove(control_.get()); }

bool Linger::Work() {
  ready_ = false;
  while (sent_ < queued_.size()) {
    const ssize_t n = ::send(control_.get(), queued_.data() + sent_, queued_.size() - sent_,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return true;
    sent_ += static_cast<size_t>(n);
  }
  // Half-close: the peer reads everything that was sent and then the end of file.
  if (sent_ == queued_.size()) ::shutdown(control_.get(), SHUT_WR);
  // What the peer still sends is read and dropped: unread bytes would turn close() into a reset.
  std::array<char, 4096> bin;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const ssize_t n = ::recv(control_.get(), bin.data(), bin.size(), MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    return n == 0 || errno != EAGAIN;
  }
  ready_ = true;
  return false;
}

void Lingerers::Add(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued) {
  const size_t share = std::min(kMaxDescriptors, DescriptorsForUnproved());
  const size_t most = share - std::min(share, 1 + data.size());
  while (all_.size() >= kMax || (!all_.empty() && descriptors() > most)) all_.pop_front();
  all_.emplace_back(reactor, std::move(control), std::move(data), std::move(queued));
}

size_t Lingerers::descriptors() const {
  size_t descriptors = 0;
  for (const Linger& linger : all_) descriptors += linger.descriptors();
  return descriptors;
}

void Lingerers::Work() {
  all_.remove_if([](Linger& linger) { return linger.HasWork() && linger.Work(); });
}

bool Lingerers::HasWork() const {
  return std::ranges::any_of(all_, [](const Linger& linger) { return linger.HasWork(); });
}

std::optional<Time> Lingerers::deadline() const {
  if (all_.empty()) return std::nullopt;
  return all_.front().deadline();
}

void Lingerers::OnDeadline(Time now) {
  all_.remove_if([now](const Linger& linger) { return linger.deadline() <= now; });
}

}  // namespace kvxfer::net
