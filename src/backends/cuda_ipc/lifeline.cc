#include "src/backends/cuda_ipc/lifeline.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::cuda_ipc {
namespace {

// The packet type, in front of every packet.
constexpr size_t kHeadBytes = 8;

// The first descriptor that came with `message`; -1: there is none. Others are closed.
int TakeFile(msghdr& message) {
  int file = -1;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int one;
      std::memcpy(&one, CMSG_DATA(part) + i * sizeof(int), sizeof(one));
      if (file < 0) {
        file = one;
      } else {
        close(one);
      }
    }
  }
  return file;
}

}  // namespace

absl::StatusOr<net::Fd> NewSocket() {
  net::Fd fd = net::Fd::Open(
      [] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (fd.valid()) return fd;
  return ErrnoStatus(errno, "socket", absl::StatusCode::kResourceExhausted);
}

absl::StatusOr<std::unique_ptr<Lifeline>> Lifeline::Connect(net::Reactor* reactor,
                                                            const std::string& listener) {
  absl::StatusOr<net::Fd> socket = NewSocket();
  if (!socket.ok()) return socket.status();
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (listener.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError("the name of the peer's socket is too long");
  }
  // Abstract name: the first byte of the path stays zero.
  std::memcpy(name.sun_path + 1, listener.data(), listener.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + listener.size());
  if (::connect(socket->get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0) {
    return absl::UnavailableError(ErrnoText(
        errno == EAGAIN ? "too many wait for the peer's process" : "connecting to the process",
        errno));
  }
  return Adopt(reactor, *std::move(socket));
}

absl::StatusOr<std::unique_ptr<Lifeline>> Lifeline::Adopt(net::Reactor* reactor, net::Fd socket) {
  std::unique_ptr<Lifeline> lifeline(new Lifeline(reactor, std::move(socket)));
  if (absl::Status begun = lifeline->Begin(); !begun.ok()) return begun;
  return lifeline;
}

Lifeline::Lifeline(net::Reactor* reactor, net::Fd socket)
    : reactor_(reactor), socket_(std::move(socket)), process_(::getpid()) {}

absl::Status Lifeline::Begin() {
  // On a connected socket these are the credentials of the process that called listen().
  ucred peer{};
  socklen_t bytes = sizeof(peer);
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0) {
    return absl::InternalError(ErrnoText("SO_PEERCRED", errno));
  }
  peer_ = {.pid = static_cast<uint32_t>(peer.pid), .uid = peer.uid};
  absl::Status added = reactor_->Add(socket_.get(), this);
  watched_ = added.ok();
  return added;
}

Lifeline::~Lifeline() {
  if (watched_) reactor_->Remove(socket_.get());
  // shutdown() also works if a child that was created without fork handlers holds a copy. In a
  // forked child it is not called, because the descriptor number may be another file's by now.
  if (socket_.valid() && !ended_ && ::getpid() == process_) ::shutdown(socket_.get(), SHUT_RDWR);
}

void Lifeline::OnReady(uint32_t events) {
  if ((events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) readable_ = true;
  if ((events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) != 0) writable_ = true;
}

void Lifeline::Send(PacketType type, std::string_view body, net::Fd file) {
  std::string bytes(kHeadBytes, '\0');
  const auto head = static_cast<uint32_t>(type);
  std::memcpy(bytes.data(), &head, sizeof(head));
  bytes.append(body.substr(0, kMaxPacketBytes - kHeadBytes));
  if (queue_.empty() && TrySend(bytes, file.get())) return;
  queue_.push_back({std::move(bytes), std::move(file)});
}

void Lifeline::Flush() {
  while (!queue_.empty() && TrySend(queue_.front().bytes, queue_.front().file.get())) {
    queue_.pop_front();
  }
}

bool Lifeline::TrySend(std::string_view bytes, int file) {
  if (!writable_) return false;
  iovec piece{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &file, sizeof(file));
  }
  while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno == EAGAIN) {
      writable_ = false;
      return false;
    }
    if (errno == ETOOMANYREFS) {
      // The kernel limits descriptors in flight. Sent without its descriptor, the packet makes the
      // other side report what is missing.
      message.msg_control = nullptr;
      message.msg_controllen = 0;
      continue;
    }
    return true;  // the connection is over; Receive reports it
  }
  return true;
}

Lifeline::Got Lifeline::Receive(Packet& packet) {
  packet = {};
  if (ended_) return Got::kEnd;
  iovec piece{.iov_base = buffer_.data(), .iov_len = buffer_.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(8 * sizeof(int))> control{};
  msghdr message{};
  ssize_t got = 0;
  int error = 0;
  packet.file = net::Fd::Open([&] {
    do {
      message = {};
      message.msg_iov = &piece;
      message.msg_iovlen = 1;
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      // A reset says, once, that the other side closed without having read everything. What it had
      // sent can still be read, including its last packet.
    } while (got < 0 && (errno == EINTR || errno == ECONNRESET));
    error = errno;
    return got < 0 ? -1 : TakeFile(message);
  });
  if (got < 0 && error == EAGAIN) {
    readable_ = false;
    return Got::kNothing;
  }
  if (got <= 0) {
    ended_ = true;
    return Got::kEnd;
  }
  const auto bytes = static_cast<size_t>(got);
  uint32_t type = 0;
  if (bytes >= kHeadBytes && (message.msg_flags & MSG_TRUNC) == 0) {
    std::memcpy(&type, buffer_.data(), sizeof(type));
    packet.body = {buffer_.data() + kHeadBytes, bytes - kHeadBytes};
  }
  packet.type = static_cast<PacketType>(type);
  return Got::kPacket;
}

}  // namespace kvxfer::cuda_ipc
