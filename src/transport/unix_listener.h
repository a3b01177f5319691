// Accepts connections of processes of this host (unix_socket.h) for one backend. A connection from
// another user ends here. If no descriptors are left, the oldest silent connection ends, and
// without one new connections wait.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_UNIX_LISTENER_H_
#define KVXFER_TRANSPORT_UNIX_LISTENER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/types.h"
#include "src/core/base/clock.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/unix_socket.h"

namespace kvxfer::net {

class UnixListener final : private Watcher {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnAccepted(Fd socket, const Credentials& peer) = 0;
    // A process of another user has connected; it may be told why it is refused.
    virtual void OnRefused(Fd /*socket*/, const Credentials& /*peer*/) {}
    // No descriptor is left: ends the oldest connection that has said nothing. False: there is
    // none.
    virtual bool EndOldestSilent() { return false; }
  };

  // `backend` is for texts and for the name.
  UnixListener(std::string_view backend, Owner* owner) : backend_(backend), owner_(owner) {}
  ~UnixListener() override { Close(); }

  absl::Status Open(Reactor* reactor, const Incarnation& incarnation);
  void Close();
  // The abstract name, for the metadata.
  const std::string& name() const { return name_; }

  // Accepts a bounded number of connections; call it after Reactor::Collect.
  void Work();
  bool HasWork() const { return acceptable_; }
  // When waiting connections are accepted again, if descriptors had run out.
  std::optional<Time> deadline() const { return paused_until_; }

 private:
  void OnReady(uint32_t /*events*/) override { acceptable_ = !paused_until_; }
  void Take(Fd socket);
  void Refuse(Fd socket, const Credentials& peer);

  const std::string backend_;
  Owner* const owner_;
  Reactor* reactor_ = nullptr;
  std::string name_;
  Fd listener_;
  bool acceptable_ = false;
  bool starved_ = false;                // no descriptor since the last accept; was logged
  std::optional<Time> paused_until_;    // set while there are no descriptors
  std::vector<uint32_t> refused_uids_;  // users whose attempts were logged; bounded
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_UNIX_LISTENER_H_
