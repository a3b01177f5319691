// Where lifelines come in: an abstract socket, and those that have not yet said whose they are.
//
// Another user gets no further than the kernel's word on who it is. Who says nothing goes when
// others come.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_CUDA_IPC_DESK_H_
#define KVXFER_BACKENDS_CUDA_IPC_DESK_H_

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

class Desk final : public net::Watcher {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    // A lifeline, and what was said on it first. It is dropped where nobody takes it.
    virtual void OnDial(std::unique_ptr<Lifeline> lifeline, const DialPacket& dial) = 0;
  };

  explicit Desk(Owner* owner) : owner_(owner) {}
  ~Desk() override { Close(); }

  absl::Status Open(net::Reactor* reactor, const Incarnation& incarnation);
  void Close();
  // What metadata says.
  const std::string& name() const { return name_; }

  // Accepts and listens; bounded.
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
  // False: it is done with.
  bool Hear(std::unique_ptr<Lifeline>& lifeline);

  Owner* const owner_;
  net::Reactor* reactor_ = nullptr;
  std::string name_;
  net::Fd listener_;
  bool acceptable_ = false;
  std::optional<Time> paused_until_;              // without descriptors
  std::list<std::unique_ptr<Lifeline>> waiting_;  // oldest first
  std::vector<uint32_t> refused_users_;           // those that were warned of
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_DESK_H_
