// What the control streams of one backend share if its data does not travel over TCP: one epoll
// set, a listener, the endpoints, their events and their timers.
//
// A backend's Poll consists of Begin, the backend's own devices, Work, and End.
//
// Lifetime: endpoints may outlive the hub; after Close they are useless.
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_ENDPOINT_HUB_H_
#define KVXFER_TRANSPORT_ENDPOINT_HUB_H_

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

class ControlEndpoint;

class EndpointHub final : private Listener::Acceptor {
 public:
  // The backend that uses the hub.
  class Client {
   public:
    virtual ~Client() = default;
    // A peer has connected; `control` is watched, and the welcome was sent.
    virtual std::unique_ptr<ControlEndpoint> Accept(Fd control, std::string from) = 0;
    // The backend's own deadline, beside those of endpoints; asked in every turn.
    virtual std::optional<Time> deadline() const { return std::nullopt; }
    virtual void OnDeadline(Time /*now*/) {}
  };
  struct Settings {
    std::string backend{};  // begins errors, e.g. "verbs"
    Service service{};
    Incarnation incarnation{};
    Duration connect_timeout{};
  };

  EndpointHub(Settings settings, Client* client)
      : settings_(std::move(settings)), client_(client) {}
  ~EndpointHub() override { Close(); }

  // Must be called first.
  absl::Status Open();
  // Listens at `own`, the value of the option that errors call `own_name`. If that is empty,
  // listens at any free port of the host of `options.listen`.
  absl::Status Listen(const AgentOptions& options, const std::string& own,
                      std::string_view own_name);
  // Detaches every endpoint, and drops the events that were not reported.
  void Close();

  // What peers need to connect (src/transport/sockets/address.h), and "host:port".
  std::string Address() const { return EncodeAddress({settings_.incarnation, advertised_}); }
  std::string ListenAddress() const { return listener_->address().ToString(); }
  // Starts connecting an endpoint that the backend has made.
  void Dial(ControlEndpoint* endpoint);

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

  // --- for the backend and its endpoints ---
  const Settings& settings() const { return settings_; }
  Reactor& reactor() { return *reactor_; }
  EventSink& sink() { return sink_; }
  // All endpoints that are not destroyed.
  const std::vector<ControlEndpoint*>& endpoints() const { return endpoints_; }
  // Counts the calls of Begin.
  uint64_t poll_number() const { return poll_number_; }
  void TimersChanged() { timers_changed_ = true; }
  void Activate(ControlEndpoint* endpoint);
  void Forget(ControlEndpoint* endpoint);
  void Linger(Fd control, std::string queued);

 private:
  void OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) override;
  void WorkEndpoints();
  void OnDeadlines();
  std::optional<Time> NextDeadline() const;
  // Deadlines of the listener and the client, which do not report changes.
  std::optional<Time> UnreportedDeadline() const;

  const Settings settings_;
  Client* const client_;
  std::unique_ptr<Reactor> reactor_;
  EventSink sink_;
  std::vector<SocketAddress> advertised_;
  uint64_t poll_number_ = 0;
  std::vector<ControlEndpoint*> endpoints_;
  std::vector<ControlEndpoint*> active_;  // endpoints that may have work
  Lingerers lingering_;
  bool timers_changed_ = false;
  std::optional<Time> next_deadline_;
  std::unique_ptr<Listener> listener_;  // last, because it passes streams to the members above
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_ENDPOINT_HUB_H_
