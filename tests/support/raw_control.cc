#include "tests/support/raw_control.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <utility>

#include "src/transport/sockets/address.h"

namespace kvxfer::testing {

absl::StatusOr<std::unique_ptr<RawControl>> RawControl::Dial(std::string_view address) {
  absl::StatusOr<verbs::MetadataAddress> told = verbs::DecodeMetadataAddress(address);
  if (!told.ok()) return told.status();
  absl::StatusOr<net::PeerAddress> peer = net::DecodeAddress(told->control);
  if (!peer.ok()) return peer.status();
  net::SocketAddress& to = peer->candidates.front();
  net::Fd fd(::socket(to.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // Little lies in the kernel, so that what this side does not read is the other's to keep.
  const int small = 4096;
  if (!fd.valid() || ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)) != 0 ||
      ::connect(fd.get(), to.get(), to.length) != 0) {
    return absl::UnavailableError("not connected");
  }
  std::unique_ptr<RawControl> made(new RawControl(std::move(fd)));
  std::array<std::byte, net::kPreambleBytes> preamble;
  net::Encode(net::Preamble{.rails = 1, .target = peer->incarnation, .service = net::Service{1}},
              preamble);
  if (!made->Write({reinterpret_cast<const char*>(preamble.data()), preamble.size()})) {
    return absl::UnavailableError("no preamble");
  }
  return made;
}

bool RawControl::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool RawControl::Say(const verbs::Blob& blob) {
  const std::string bytes = verbs::Encode(blob);
  return Say(net::ControlKind::kFrame, std::as_bytes(std::span(bytes)));
}

bool RawControl::Say(net::ControlKind kind, std::span<const std::byte> payload) {
  std::array<std::byte, net::kControlHeadBytes> head;
  net::Encode(net::ControlHead{.bytes = static_cast<uint32_t>(payload.size()), .kind = kind}, head);
  std::string frame(reinterpret_cast<const char*>(head.data()), head.size());
  frame.append(reinterpret_cast<const char*>(payload.data()), payload.size());
  return Write(frame);
}

bool RawControl::Listen() {
  std::array<char, 65536> some;
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), some.data(), some.size(), MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    in_.append(some.data(), static_cast<size_t>(n));
    Take();
  }
}

void RawControl::Take() {
  if (!welcomed_) {
    if (in_.size() < net::kWelcomeBytes) return;
    welcomed_ = true;
    in_.erase(0, net::kWelcomeBytes);
  }
  for (;;) {
    const auto bytes = std::as_bytes(std::span(in_));
    if (bytes.size() < net::kControlHeadBytes) return;
    const auto head = net::DecodeControlHead(bytes.first<net::kControlHeadBytes>());
    if (!head.ok() || bytes.size() < net::kControlHeadBytes + head->bytes) return;
    if (head->kind == net::ControlKind::kFrame) {
      auto blob = verbs::Decode(bytes.subspan(net::kControlHeadBytes, head->bytes));
      if (blob.ok()) heard_.push_back(*std::move(blob));
    }
    in_.erase(0, net::kControlHeadBytes + head->bytes);
  }
}

}  // namespace kvxfer::testing
