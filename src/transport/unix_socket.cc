#include "src/transport/unix_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::net {
namespace {

struct UnixAddress {
  explicit UnixAddress(std::string_view name)
      : length(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) {
    address.sun_family = AF_UNIX;
    // Abstract name: the first byte of the path stays zero.
    std::memcpy(address.sun_path + 1, name.data(), name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  const socklen_t length;
};

absl::StatusOr<Fd> NewSocket(std::string_view name) {
  if (name.size() > kMaxUnixName) {
    return absl::InvalidArgumentError("the name of the socket is too long");
  }
  Fd fd =
      Fd::Open([] { return ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  if (!fd.valid()) return ErrnoStatus(errno, "socket", absl::StatusCode::kResourceExhausted);
  return fd;
}

// Space for one descriptor; the kernel closes any others.
struct Control {
  alignas(cmsghdr) char bytes[CMSG_SPACE(sizeof(int))] = {};
};

int TakeFile(msghdr& message) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS ||
        c->cmsg_len < CMSG_LEN(sizeof(int))) {
      continue;
    }
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(c), sizeof(fd));
    return fd;
  }
  return -1;
}

}  // namespace

absl::StatusOr<Fd> ListenUnix(std::string_view name) {
  absl::StatusOr<Fd> socket = NewSocket(name);
  if (!socket.ok()) return socket;
  const UnixAddress at(name);
  if (::bind(socket->get(), at.get(), at.length) != 0 || ::listen(socket->get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listening on @", ToAbsl(name)));
  }
  return socket;
}

absl::StatusOr<Fd> ConnectUnix(std::string_view name) {
  absl::StatusOr<Fd> socket = NewSocket(name);
  if (!socket.ok()) return socket;
  const UnixAddress at(name);
  if (::connect(socket->get(), at.get(), at.length) == 0) return socket;
  if (errno == EAGAIN) {
    return absl::UnavailableError("connecting: its queue of new connections is full; try again");
  }
  absl::Status status = ErrnoStatus(errno, "connecting");
  if (errno != ECONNREFUSED) return status;
  return absl::UnavailableError(absl::StrCat(status.message(), "; that agent is gone"));
}

absl::StatusOr<Credentials> PeerCredentials(int socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return ErrnoStatus(errno, "SO_PEERCRED");
  }
  return Credentials{.pid = static_cast<uint32_t>(peer.pid), .uid = peer.uid};
}

absl::Status CheckCredentials(const Credentials& peer, uint32_t pid, std::string_view backend) {
  if (peer.uid != ::geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("process ", pid, " runs as uid ", peer.uid, " and this one as uid ",
                     ::geteuid(), "; ", ToAbsl(backend), " joins processes of one user only"));
  }
  if (peer.pid == pid) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the peer calls itself process ", pid, " but is ", peer.pid,
                   " here: the two are in different pid namespaces (run both containers with "
                   "one, e.g. --pid=host)"));
}

std::string WhyNotJoined(const HostIdentity& here, const HostIdentity& there,
                         std::string_view backend) {
  if (here.uid != there.uid) {
    return absl::StrCat("it runs as uid ", there.uid, " and this process as uid ", here.uid, "; ",
                        ToAbsl(backend), " joins processes of one user only");
  }
  if (here.net_namespace != there.net_namespace) {
    return "it is in another network namespace, and abstract sockets do not cross them (run both "
           "containers with one, e.g. --network=host)";
  }
  if (here.pid_namespace != there.pid_namespace) {
    return "it is in another pid namespace, so that its end could not be noticed (run both "
           "containers with one, e.g. --pid=host)";
  }
  return {};
}

int SendPacket(int socket, std::string_view head, std::string_view body, int file) {
  iovec parts[2] = {{const_cast<char*>(head.data()), head.size()},
                    {const_cast<char*>(body.data()), body.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = 2;
  Control control;
  if (file >= 0) {
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof(control.bytes);
    cmsghdr* const c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &file, sizeof(file));
  }
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

ReceivedPacket ReceivePacket(int socket, std::span<char> buffer) {
  ReceivedPacket out;
  iovec part{buffer.data(), buffer.size()};
  Control control;
  msghdr message{};
  out.file = Fd::Open([&] {
    do {
      message = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control.bytes;
      message.msg_controllen = CMSG_LEN(sizeof(int));
      out.bytes = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
      // A reset says, once, that the other side closed without having read everything. What it had
      // sent can still be read, including its last packet.
    } while (out.bytes < 0 && (errno == EINTR || errno == ECONNRESET));
    out.error = out.bytes < 0 ? errno : 0;
    return out.bytes < 0 ? -1 : TakeFile(message);
  });
  if (out.bytes < 0) return out;
  out.cut = (message.msg_flags & MSG_TRUNC) != 0;
  out.file_lost = (message.msg_flags & MSG_CTRUNC) != 0 && !out.file.valid();
  return out;
}

}  // namespace kvxfer::net
