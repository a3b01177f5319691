#include "src/transport/sockets/stream.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

#include "src/core/base/strings.h"
#include "src/transport/host/hidden_move.h"
#include "src/transport/host/message_order.h"

namespace kvxfer::net {
namespace {

size_t TotalBytes(std::span<const iovec> pieces) {
  size_t total = 0;
  for (const iovec& piece : pieces) total += piece.iov_len;
  return total;
}

ssize_t Send(int fd, const msghdr& message) {
  const HiddenMove moves;
  return ::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

ssize_t Receive(int fd, std::span<iovec> pieces) {
  const HiddenMove moves;
  // recv is cheaper than readv, which matters to a thread that polls.
  return pieces.size() == 1 ? ::recv(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_DONTWAIT)
                            : ::readv(fd, pieces.data(), static_cast<int>(pieces.size()));
}

}  // namespace

Stream::~Stream() { Release(); }

absl::Status Stream::Attach(Fd fd) {
  if (absl::Status added = client_->reactor().Add(fd.get(), this); !added.ok()) return added;
  fd_ = std::move(fd);
  readable_ = writable_ = true;
  hung_up_ = false;
  return absl::OkStatus();
}

void Stream::Adopt(Fd fd) {
  client_->reactor().Change(fd.get(), this);
  fd_ = std::move(fd);
  readable_ = writable_ = true;
  hung_up_ = false;
}

Fd Stream::Release() {
  if (fd_.valid()) client_->reactor().Remove(fd_.get());
  readable_ = writable_ = hung_up_ = false;
  return std::move(fd_);
}

absl::Status Stream::MoveTo(StreamClient* client) {
  client_->reactor().Remove(fd_.get());
  client_ = client;
  readable_ = writable_ = true;
  return client_->reactor().Add(fd_.get(), this);
}

void Stream::OnReady(uint32_t events) {
  constexpr uint32_t kHangUp = EPOLLRDHUP | EPOLLHUP | EPOLLERR;
  if (events & kHangUp) hung_up_ = true;
  if (events & (EPOLLIN | kHangUp)) readable_ = true;
  if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) writable_ = true;
  client_->Activate();
}

absl::StatusOr<size_t> Stream::Write(std::span<iovec> pieces) {
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  while (true) {
    const ssize_t n = Send(fd_.get(), message);
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      writable_ = false;
      return size_t{0};
    }
    return absl::UnavailableError(ErrnoText("send", errno));
  }
}

absl::StatusOr<size_t> Stream::Read(std::span<iovec> pieces) {
  const size_t asked = TotalBytes(pieces);
  while (true) {
    const ssize_t n = Receive(fd_.get(), pieces);
    if (n > 0) {
      MessageHasCome();
      // Fewer bytes than asked for: the socket is empty, and the next byte makes a new edge. The
      // end of the stream does not, if its edge was already reported; so after a hang-up the socket
      // stays readable.
      if (static_cast<size_t>(n) < asked && !hung_up_) readable_ = false;
      return static_cast<size_t>(n);
    }
    if (n == 0) return absl::UnavailableError("the peer closed the connection (end of file)");
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      readable_ = false;
      return size_t{0};
    }
    return absl::UnavailableError(ErrnoText("receive", errno));
  }
}

}  // namespace kvxfer::net
