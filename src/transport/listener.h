// Accepts streams, reads their preambles and hands them to links. What says nothing, or nonsense,
// goes after kPreambleTimeout, or earlier when too many wait; it never reaches a link.
//
// Without descriptors left (EMFILE and its like) accepting pauses for kAcceptPause.
//
// Thread-safety: none; used by the backend's owner.

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

// Answers a preamble. Best effort: the socket is new, so its buffer has room.
void Answer(const Fd& fd, const Welcome& welcome);

class Listener final : public Watcher {
 public:
  // Beyond what the kernel waits (3 s) before it repeats what is lost right after a handshake that
  // was.
  static constexpr Duration kPreambleTimeout = std::chrono::seconds(5);
  static constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
  static constexpr size_t kMaxInbound = 512;

  // Who takes a stream whose preamble is whole. The socket stays watched; whoever takes it calls
  // Reactor::Move, whoever refuses it Reactor::Remove.
  class Acceptor {
   public:
    virtual ~Acceptor() = default;
    virtual void OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) = 0;
  };

  static absl::StatusOr<std::unique_ptr<Listener>> Create(Reactor* reactor, Acceptor* acceptor,
                                                          const SocketAddress& at);
  ~Listener() override;

  SocketAddress address() const { return LocalAddress(fd_.get()); }
  // Accepts, and reads preambles; bounded.
  void Work();
  bool HasWork() const { return acceptable_ || fresh_; }
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  void OnReady(uint32_t events) override;

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
  // False: the stream is done with, one way or another.
  bool ReadPreamble(Inbound& inbound);

  Reactor* const reactor_;
  Acceptor* const acceptor_;
  Fd fd_;
  bool acceptable_ = true;
  bool fresh_ = false;    // some inbound stream may have bytes
  bool starved_ = false;  // no descriptor since the last accept; said so
  std::optional<Time> paused_until_;
  std::list<Inbound> inbound_;  // oldest first
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_LISTENER_H_
