// Where lifelines arrive: an abstract socket, and the lifelines that have not sent kDial yet.
//
// A lifeline that sends nothing is closed when too many others arrive.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_LIFELINE_LISTENER_H_
#define KVXFER_BACKENDS_CUDA_IPC_LIFELINE_LISTENER_H_

#include <list>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "src/backends/cuda_ipc/lifeline.h"
#include "src/core/base/clock.h"
#include "src/transport/unix_listener.h"

namespace kvxfer::cuda_ipc {

class LifelineListener final : private net::UnixListener::Owner {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // A lifeline and the first packet on it. The lifeline is closed if the owner does not take it.
    virtual void OnDial(std::unique_ptr<Lifeline> lifeline, const DialPacket& dial) = 0;
  };

  explicit LifelineListener(Owner* owner) : owner_(owner) {}
  ~LifelineListener() override { Close(); }

  absl::Status Open(net::Reactor* reactor, const Incarnation& incarnation) {
    reactor_ = reactor;
    return listener_.Open(reactor, incarnation);
  }
  void Close();
  // The socket's name, for the metadata.
  const std::string& name() const { return listener_.name(); }

  // Accepts connections and reads their first packets; a bounded amount.
  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const { return listener_.deadline(); }

 private:
  static constexpr size_t kMaxWaiting = 64;

  void OnAccepted(net::Fd socket, const net::Credentials& peer) override;
  bool EndOldestSilent() override;
  // False: the lifeline was taken, or must be closed.
  bool Hear(std::unique_ptr<Lifeline>& lifeline);

  Owner* const owner_;
  net::Reactor* reactor_ = nullptr;
  std::list<std::unique_ptr<Lifeline>> waiting_;  // oldest first
  net::UnixListener listener_{"cuda_ipc", this};
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_LIFELINE_LISTENER_H_
