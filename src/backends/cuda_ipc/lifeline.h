// The lifeline of an endpoint: a SOCK_SEQPACKET socket between its two processes. It carries memory
// handles, including descriptors, and it shows the end of a connection. A socket inside one kernel
// is lost only with a process, never with a network, and the kernel reports through its credentials
// which process is at the other end.
//
// Thread-safety: none; called by the agent's driver only. Nothing here blocks.

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
#include "src/transport/unix_socket.h"

namespace kvxfer::cuda_ipc {

class Lifeline final : public net::Watcher {
 public:
  struct Packet {
    PacketType type{};
    std::string_view body{};  // valid until the next Receive
    net::Fd file{};           // also absent if this process had no descriptor left for it
  };
  enum class Got : uint8_t { kPacket, kNothing, kEnd };

  // Connects to the listener of that name (lifeline_listener.h). Unavailable: no process listens
  // there, or too many connections wait.
  static absl::StatusOr<std::unique_ptr<Lifeline>> Connect(net::Reactor* reactor,
                                                           const std::string& listener);
  // Takes an accepted socket.
  static absl::StatusOr<std::unique_ptr<Lifeline>> Adopt(net::Reactor* reactor, net::Fd socket);
  // Sends nothing; the other side sees the end.
  ~Lifeline() override;

  const net::Credentials& peer() const { return peer_; }

  // Queues the packet if the socket has no space; the caller limits how many.
  void Send(PacketType type, std::string_view body, net::Fd file = {});
  bool sending() const { return !queue_.empty(); }
  void Flush();

  // kEnd: the other side has closed it, and everything that it sent has been received.
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
  // False: the socket has no space.
  bool TrySend(std::string_view bytes, int file);

  net::Reactor* const reactor_;
  net::Fd socket_;
  const pid_t process_;  // that created it
  net::Credentials peer_;
  std::deque<Queued> queue_;
  bool watched_ = false;
  bool readable_ = true;
  bool writable_ = true;
  bool ended_ = false;
  alignas(8) std::array<char, kMaxPacketBytes> buffer_;
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_LIFELINE_H_
