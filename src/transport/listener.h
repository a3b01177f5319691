// Accepts streams, reads their preambles, and passes them to endpoints. A stream that sends nothing
// or nonsense is closed after kPreambleTimeout, or earlier if too many wait; it never reaches an
// endpoint.
//
// If no descriptors are left (EMFILE and the like), the acceptor ends a connection that has proved
// nothing. Without one, accepting pauses for kAcceptPause.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_LISTENER_H_
#define KVXFER_TRANSPORT_LISTENER_H_

#include <array>
#include <cstddef>
#include <list>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "src/core/base/clock.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/reactor.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

// Sends `welcome`. Best effort: the socket is new, so its buffer has space.
void Answer(const Fd& fd, const Welcome& welcome);

class Listener final : public Watcher {
 public:
  // Longer than the 3 s that the kernel waits before it retransmits a packet that is lost right
  // after a handshake that itself had a loss.
  static constexpr Duration kPreambleTimeout = std::chrono::seconds(5);
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
  static constexpr size_t kMaxInbound = 512;

  // Takes a stream whose preamble is complete. The socket is still watched by the listener: a taker
  // calls Reactor::Change, a refuser calls Reactor::Remove.
  class Acceptor {
   public:
    virtual ~Acceptor() = default;
    virtual void OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) = 0;
    // A stream has been accepted: keeps the descriptors of connections that have proved nothing
    // within their share (DescriptorsForUnproved). It may call EndOldest.
    virtual void KeepShare() = 0;
    // Ends the oldest connection that has proved nothing. False: there is none.
    virtual bool EndOldestUnproved() = 0;
  };

  static absl::StatusOr<std::unique_ptr<Listener>> Create(Reactor* reactor, Acceptor* acceptor,
                                                          const SocketAddress& at);
  ~Listener() override;

  SocketAddress address() const { return LocalAddress(fd_.get()); }
  // Accepts streams and reads preambles, a bounded number of each.
  void Work();
  bool HasWork() const { return acceptable_ || fresh_; }
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  void OnReady(uint32_t events) override;

  // --- streams without a preamble ---
  size_t inbound() const { return inbound_.size(); }
  std::optional<Time> oldest() const;
  void EndOldest() { inbound_.pop_front(); }

 private:
  class Inbound final : public Watcher {
   public:
    Inbound(Listener* owner, Fd socket, std::string peer);
    ~Inbound() override;
    void OnReady(uint32_t events) override;

    Listener* const listener;
    Fd fd;
    const std::string from;
    const Time deadline;
    bool readable = true;
    std::array<std::byte, kPreambleBytes> bytes{};
    size_t have = 0;
  };

  Listener(Reactor* reactor, Acceptor* acceptor, Fd fd)
      : reactor_(reactor), acceptor_(acceptor), fd_(std::move(fd)) {}
  void AcceptSome();
  void PauseAccepting(int error_number);
  // False: the listener is done with the stream, whether it was passed on or not.
  bool ReadPreamble(Inbound& inbound);

  Reactor* const reactor_;
  Acceptor* const acceptor_;
  Fd fd_;
  bool acceptable_ = true;
  bool fresh_ = false;    // an inbound stream may have bytes
  bool starved_ = false;  // no descriptor since the last accept; was logged
  std::optional<Time> paused_until_;
  std::list<Inbound> inbound_;  // oldest first
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_LISTENER_H_
