#include "src/transport/handouts.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "src/core/base/descriptor_share.h"

namespace kvxfer::net {

Handouts::Handout::Handout(Handouts* owner, Reactor* reactor, Fd fd,
                           std::shared_ptr<const std::string> bytes)
    : owner_(owner), reactor_(reactor), fd_(std::move(fd)), bytes_(std::move(bytes)) {
  Encode(Welcome{.bytes = bytes_->size()}, head_);
  // Bounds how long the kernel keeps data for a peer that does not read, after the socket was
  // closed.
  SetUserTimeout(fd_.get(), static_cast<unsigned>(kTimeout / std::chrono::milliseconds(1)));
  reactor_->Change(fd_.get(), this);
}

Handouts::Handout::~Handout() { reactor_->Remove(fd_.get()); }

void Handouts::Handout::OnReady(uint32_t events) {
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) == 0) return;
  ready_ = true;
  owner_->fresh_ = true;
}

std::span<const std::byte> Handouts::Handout::Left() const {
  if (sent_ < head_.size()) return std::span(head_).subspan(sent_);
  return std::as_bytes(std::span(*bytes_)).subspan(sent_ - head_.size());
}

size_t Handouts::Handout::Send(size_t most) {
  size_t count = 0;
  while (count < most && !over_) {
    const std::span<const std::byte> left = Left();
    // The head waits for the first payload bytes, so that both leave in one packet.
    const int more = sent_ < head_.size() ? MSG_MORE : 0;
    const ssize_t n = ::send(fd_.get(), left.data(), std::min(left.size(), most - count),
                             MSG_NOSIGNAL | MSG_DONTWAIT | more);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      ready_ = false;
      break;
    }
    over_ = n < 0;
    if (over_) break;
    sent_ += static_cast<size_t>(n);
    count += static_cast<size_t>(n);
    over_ = sent_ == head_.size() + bytes_->size();
  }
  return count;
}

bool Handouts::MakeSpace(Time now) {
  if (all_.size() < std::min(kMax, DescriptorsForUnproved())) return true;
  // The oldest hand-out gives way only after kFairTime.
  if (now - all_.front()->begun() < kFairTime) return false;
  all_.erase(all_.begin());
  return true;
}

void Handouts::Add(Reactor* reactor, Fd fd, std::shared_ptr<const std::string> bytes) {
  all_.push_back(std::make_unique<Handout>(this, reactor, std::move(fd), std::move(bytes)));
  fresh_ = true;
}

void Handouts::Work() {
  if (!std::exchange(fresh_, false)) return;
  size_t space = kTurnBytes;
  // Round robin, kPieceBytes each: a fast reader must not starve the others.
  for (size_t i = all_.size(); i > 0; --i) {
    if (turn_ >= all_.size()) turn_ = 0;
    Handout& handout = *all_[turn_];
    if (handout.ready()) {
      space -= handout.Send(std::min(space, kPieceBytes));
      fresh_ |= handout.ready() && !handout.over();
    }
    // The turn's budget is spent; the next turn continues with the next reader.
    if (space == 0) fresh_ = true;
    if (handout.over()) {
      all_.erase(all_.begin() + static_cast<std::ptrdiff_t>(turn_));
    } else {
      ++turn_;
    }
    if (space == 0) return;
  }
}

std::optional<Time> Handouts::deadline() const {
  if (all_.empty()) return std::nullopt;
  return all_.front()->begun() + kTimeout;
}

void Handouts::OnDeadline(Time now) {
  std::erase_if(all_, [now](const auto& handout) { return handout->begun() + kTimeout <= now; });
}

}  // namespace kvxfer::net
