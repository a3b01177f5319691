// What the control streams of one backend share if its data does not travel over TCP: one epoll
// set, a listener, the links, their events and their timers.
//
// A backend's Poll consists of Begin, the backend's own devices, Work, and End.
//
// Lifetime: links may outlive the hub; after Close they are useless.
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_LINK_HUB_H_
#define KVXFER_TRANSPORT_LINK_HUB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/core/base/clock.h"
#include "src/transport/event_sink.h"
#include "src/transport/listener.h"
#include "src/transport/sockets/address.h"
#include "src/transport/sockets/linger.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::net {

class ControlLink;

class LinkHub final : private Listener::Acceptor {
 public:
  // The backend that uses the hub.
  class Owner {
   public:
    virtual ~Owner() = default;
    // A peer has connected; `control` is watched, and the welcome was sent.
    virtual std::unique_ptr<ControlLink> Accept(Fd control, std::string from) = 0;
    // The backend's own deadline, beside those of links; asked in every turn.
    virtual std::optional<Time> deadline() const { return std::nullopt; }
    virtual void OnDeadline(Time /*now*/) {}
  };
  struct Settings {
    std::string backend{};  // begins errors, e.g. "verbs"
    Service service{};
    Incarnation incarnation{};
    Duration connect_timeout{};
  };

  LinkHub(Settings settings, Owner* owner) : settings_(std::move(settings)), owner_(owner) {}
  ~LinkHub() override { Close(); }

  // Must be called first.
  absl::Status Open();
  // Listens at `own`, the value of the option that errors call `own_name`. If that is empty,
  // listens at any free port of the host of `options.listen`.
  absl::Status Listen(const AgentOptions& options, const std::string& own,
                      std::string_view own_name);
  // Detaches every link, and drops the events that were not reported.
  void Close();

  // What peers need to connect (src/transport/sockets/address.h), and "host:port".
  std::string Address() const { return EncodeAddress({settings_.incarnation, advertised_}); }
  std::string ListenAddress() const { return listener_->address().ToString(); }
  // Starts connecting a link that the backend has made.
  void Dial(ControlLink* link);

  // --- turns ---
  // False: waiting events fill `out`, and Work must not be called.
  bool Begin(std::span<Event> out, bool readable);
  void Work();
  size_t End() { return sink_.End(); }
  // Whether there is work that fd() would not show.
  bool HasWork() const;
  // Call it after deadlines have changed outside of Work.
  void SetTimer();
  int fd() const { return reactor_->fd(); }

  // --- for the backend and its links ---
  const Settings& settings() const { return settings_; }
  Reactor& reactor() { return *reactor_; }
  EventSink& sink() { return sink_; }
  // All links that are not destroyed.
  const std::vector<ControlLink*>& links() const { return links_; }
  // Counts the calls of Begin.
  uint64_t poll_number() const { return poll_number_; }
  void TimersChanged() { timers_changed_ = true; }
  void Activate(ControlLink* link);
  void Forget(ControlLink* link);
  void Linger(Fd control, std::string queued);

 private:
  void OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) override;
  void WorkLinks();
  void OnDeadlines();
  std::optional<Time> NextDeadline() const;
  // Deadlines of the listener and the owner, which do not report changes.
  std::optional<Time> UnreportedDeadline() const;

  const Settings settings_;
  Owner* const owner_;
  std::unique_ptr<Reactor> reactor_;
  EventSink sink_;
  std::vector<SocketAddress> advertised_;
  uint64_t poll_number_ = 0;
  std::vector<ControlLink*> links_;
  std::vector<ControlLink*> active_;  // links that may have work
  Lingerers lingering_;
  bool timers_changed_ = false;
  std::optional<Time> next_deadline_;
  std::unique_ptr<Listener> listener_;  // last, because it passes streams to the members above
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_LINK_HUB_H_
