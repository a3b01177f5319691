// Sockets between the processes of one host: SOCK_SEQPACKET with abstract names. They carry
// packets, each with at most one descriptor, and the kernel says which process is at the other end.
//
// Thread-safety: functions without state; nothing here blocks.

#ifndef KVXFER_TRANSPORT_UNIX_SOCKET_H_
#define KVXFER_TRANSPORT_UNIX_SOCKET_H_

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

// The longest abstract name that fits sockaddr_un after its leading zero byte.
inline constexpr size_t kMaxUnixName = 106;

// The process at the other end, according to the kernel: the one that called listen() or connect().
struct Credentials {
  uint32_t pid = 0;  // 0: it is in a pid namespace that is not visible here
  uint32_t uid = 0;
};

// ResourceExhausted: no descriptors left.
absl::StatusOr<Fd> ListenUnix(std::string_view name);
// Unavailable: no process listens there, or too many connections wait.
absl::StatusOr<Fd> ConnectUnix(std::string_view name);
absl::StatusOr<Credentials> PeerCredentials(int socket);
// OK if the peer, which calls itself process `pid`, belongs to this user and has that number here
// too. Otherwise what `backend` needs.
absl::Status CheckCredentials(const Credentials& peer, uint32_t pid, std::string_view backend);

// Why a process of `there` and this one, on one host, cannot be joined by such a socket; empty:
// they can.
std::string WhyNotJoined(const HostIdentity& here, const HostIdentity& there,
                         std::string_view backend);

// Whether a send that failed with this errno may succeed later, although the connection is well.
inline bool PassesLater(int error) {
  return error == EAGAIN || error == ENOBUFS || error == ENOMEM;
}

// Sends `head` and `body` as one packet, with descriptor `file` if it is not negative. Returns 0,
// or errno; never EINTR.
int SendPacket(int socket, std::string_view head, std::string_view body, int file);

struct ReceivedPacket {
  ssize_t bytes = 0;  // negative: nothing was received
  int error = 0;      // errno then; never EINTR
  Fd file{};
  bool cut = false;        // it has more bytes than the buffer
  bool file_lost = false;  // this process had no descriptor left for the file that came with it
};
ReceivedPacket ReceivePacket(int socket, std::span<char> buffer);

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_UNIX_SOCKET_H_
