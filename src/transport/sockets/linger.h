// Keeps the sockets of an endpoint that this side has closed until the peer has read the reason.
// Closing them at once would reset the connection, and the reset would overtake the last messages.
// Received bytes are dropped.
//
// Thread-safety: none; used by the agent's driving thread.

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

  // `queued`: what the control stream still has to send.
  Linger(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued);
  ~Linger() override;

  // Sends and receives a bounded amount. True: finished.
  bool Work();
  bool HasWork() const { return ready_; }
  Time deadline() const { return deadline_; }
  size_t descriptors() const { return 1 + data_.size(); }
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

// The lingering endpoints of one backend. Beyond kMax, or kMaxDescriptors, the oldest is closed.
class Lingerers {
 public:
  static constexpr size_t kMax = 64;
  static constexpr size_t kMaxDescriptors = 4 * kMax;

  void Add(Reactor* reactor, Fd control, std::vector<Fd> data, std::string queued);
  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  void Clear() { all_.clear(); }
  size_t descriptors() const;

 private:
  std::list<Linger> all_;  // oldest first
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_LINGER_H_
