// Where lifelines arrive: an abstract socket, and the lifelines that have not sent kDial yet.
//
// The kernel reports the peer's user, and a connection from another user ends here. A lifeline that
// sends nothing is closed when too many others arrive.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_LIFELINE_LISTENER_H_
#define KVXFER_BACKENDS_CUDA_IPC_LIFELINE_LISTENER_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "src/backends/cuda_ipc/lifeline.h"
#include "src/core/base/clock.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::cuda_ipc {

class LifelineListener final : public net::Watcher {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // A lifeline and the first packet on it. The lifeline is closed if the owner does not take it.
    virtual void OnDial(std::unique_ptr<Lifeline> lifeline, const DialPacket& dial) = 0;
  };

  explicit LifelineListener(Owner* owner) : owner_(owner) {}
  ~LifelineListener() override { Close(); }

  absl::Status Open(net::Reactor* reactor, const Incarnation& incarnation);
  void Close();
  // The socket's name, for the metadata.
  const std::string& name() const { return name_; }

  // Accepts connections and reads their first packets; a bounded amount.
  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const { return paused_until_; }
  void OnDeadline(Time now);
  void OnReady(uint32_t /*events*/) override { acceptable_ = !paused_until_; }

 private:
  static constexpr size_t kMaxWaiting = 64;
  static constexpr size_t kMaxRefusedUsers = 16;

  void Accept();
  void Refuse(const Credentials& peer);
  // False: the lifeline was taken, or must be closed.
  bool Hear(std::unique_ptr<Lifeline>& lifeline);

  Owner* const owner_;
  net::Reactor* reactor_ = nullptr;
  std::string name_;
  net::Fd listener_;
  bool acceptable_ = false;
  std::optional<Time> paused_until_;              // set while there are no descriptors
  std::list<std::unique_ptr<Lifeline>> waiting_;  // oldest first
  std::vector<uint32_t> refused_users_;           // users whose attempts were logged
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_LIFELINE_LISTENER_H_
