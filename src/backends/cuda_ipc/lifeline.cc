#include "src/backends/cuda_ipc/lifeline.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::cuda_ipc {
namespace {

// The packet type, in front of every packet.
constexpr size_t kHeadBytes = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<Lifeline>> Lifeline::Connect(net::Reactor* reactor,
                                                            const std::string& listener) {
  absl::StatusOr<net::Fd> socket = net::ConnectUnix(listener);
  if (!socket.ok()) return Annotate(socket.status(), "the peer's process");
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
  const absl::StatusOr<net::Credentials> peer = net::PeerCredentials(socket_.get());
  if (!peer.ok()) return peer.status();
  peer_ = *peer;
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
  int error = net::SendPacket(socket_.get(), {}, bytes, file);
  // The kernel limits descriptors in flight. Sent without its descriptor, the packet makes the
  // other side report what is missing.
  if (error == ETOOMANYREFS) error = net::SendPacket(socket_.get(), {}, bytes, -1);
  // No edge says that the kernel has memory again, so the next turn tries.
  if (error == EAGAIN) writable_ = false;
  // After any other error the connection is over; Receive reports it.
  return !net::PassesLater(error);
}

Lifeline::Got Lifeline::Receive(Packet& packet) {
  packet = {};
  if (ended_) return Got::kEnd;
  net::ReceivedPacket got = net::ReceivePacket(socket_.get(), buffer_);
  if (got.bytes < 0 && got.error == EAGAIN) {
    readable_ = false;
    return Got::kNothing;
  }
  if (got.bytes <= 0) {
    ended_ = true;
    return Got::kEnd;
  }
  packet.file = std::move(got.file);
  const auto bytes = static_cast<size_t>(got.bytes);
  uint32_t type = 0;
  if (bytes >= kHeadBytes && !got.cut) {
    std::memcpy(&type, buffer_.data(), sizeof(type));
    packet.body = {buffer_.data() + kHeadBytes, bytes - kHeadBytes};
  }
  packet.type = static_cast<PacketType>(type);
  return Got::kPacket;
}

}  // namespace kvxfer::cuda_ipc
