// The lifeline of a link: a SOCK_SEQPACKET socket between its two processes. It carries handles of
// memory, descriptors among them, and it is what the end of a connection is known by: a socket of
// one kernel is lost with a process alone, never with a network, and its credentials are the
// kernel's word on who is at the other end.
//
// Thread-safety: none; used by the backend's owner. Nothing here blocks.

#ifndef KVXFER_BACKENDS_CUDA_IPC_LIFELINE_H_
#define KVXFER_BACKENDS_CUDA_IPC_LIFELINE_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/cuda_ipc/wire.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::cuda_ipc {

// Who is at the other end, as the kernel knows it.
struct Credentials {
  uint32_t pid = 0;  // 0: it is in a pid namespace that is not seen from here
  uint32_t uid = 0;
};

class Lifeline final : public net::Watcher {
 public:
  struct Packet {
    PacketType type{};
    std::string_view body{};  // until the next Receive
    net::Fd file{};           // none also where this process had no descriptor left for it
  };
  enum class Got : uint8_t { kPacket, kNothing, kEnd };

  // To the desk of that name (desk.h). Unavailable: nobody is there, or too many wait there.
  static absl::StatusOr<std::unique_ptr<Lifeline>> Connect(net::Reactor* reactor,
                                                           const std::string& desk);
  // An accepted socket.
  static absl::StatusOr<std::unique_ptr<Lifeline>> Adopt(net::Reactor* reactor, net::Fd socket);
  // Says nothing: the other side sees the end.
  ~Lifeline() override;

  const Credentials& peer() const { return peer_; }

  // Queued where the socket has no room; the caller bounds how many.
  void Send(PacketType type, std::string_view body, net::Fd file = {});
  bool sending() const { return !queue_.empty(); }
  void Flush();

  // kEnd: the other side has closed it, and all that it sent has been received.
  Got Receive(Packet& packet);

  bool HasWork() const { return (readable_ && !ended_) || (writable_ && sending()); }
  void OnReady(uint32_t events) override;

 private:
  struct Queued {
    std::string bytes;
    net::Fd file;
  };

  Lifeline(net::Reactor* reactor, net::Fd socket);
  absl::Status Begin();
  // False: there is no room.
  bool TrySend(std::string_view bytes, int file);

  net::Reactor* const reactor_;
  net::Fd socket_;
  const pid_t process_;  // that made it
  Credentials peer_;
  std::deque<Queued> queue_;
  bool watched_ = false;
  bool readable_ = true;
  bool writable_ = true;
  bool ended_ = false;
  alignas(8) std::array<char, kMaxPacketBytes> buffer_;
};

// A socket for lifelines; ResourceExhausted without descriptors.
absl::StatusOr<net::Fd> NewSocket();

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_LIFELINE_H_
