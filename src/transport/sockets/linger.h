// Sockets of a link that this side closed, kept until the peer has read why: closing them at once
// would reset them, and the reset would overtake the last messages. Nothing that comes in is used.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_TRANSPORT_SOCKETS_LINGER_H_
#define KVXFER_TRANSPORT_SOCKETS_LINGER_H_

#include <list>
#include <optional>
#include <string>
#include <vector>

#include "src/core/base/clock.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

class Linger final : public Watcher {
 public:
  static constexpr Duration kTimeout = std::chrono::seconds(1);

  // `queued`: what the control stream has yet to send.
  Linger(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued);
  ~Linger() override;

  // Sends, and looks for the peer's end, a bounded amount of both. True: over.
  bool Work();
  bool HasWork() const { return ready_; }
  Time deadline() const { return deadline_; }
  void OnReady(uint32_t) override { ready_ = true; }

 private:
  Reactor* const reactor_;
  Fd control_;
  std::vector<Fd> data_;
  std::string queued_;
  size_t sent_ = 0;
  bool ready_ = true;
  const Time deadline_;
};

// Those of one backend. The oldest goes when there are more than kMax.
class Lingerers {
 public:
  static constexpr size_t kMax = 64;

  void Add(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued);
  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  void Clear() { all_.clear(); }

 private:
  std::list<Linger> all_;  // oldest first
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_LINGER_H_
