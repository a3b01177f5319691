#include "src/net/linger.h"

#include <array>
#include <cerrno>
#include <utility>

namespace kvxfer::net {
namespace {

// A peer that goes on sending is not to keep Poll from anything else, its own time-out included.
constexpr int kReadsPerTurn = 16;

}  // namespace

Linger::Linger(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued)
    : reactor_(reactor),
      control_(std::move(control)),
      data_(std::move(data)),
      queued_(std::move(queued)),
      deadline_(Now() + kTimeout) {
  // Not watched: then there is only the deadline.
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
  if (sent_ == queued_.size()) ::shutdown(control_.get(), SHUT_WR);
  std::array<char, 4096> bin;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    const ssize_t n = ::recv(control_.get(), bin.data(), bin.size(), MSG_DONTWAIT);
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    return n == 0 || errno != EAGAIN;
  }
  ready_ = true;
  return false;
}

}  // namespace kvxfer::net
