// What the socket-controlled endpoints of one backend share: one epoll set, listeners, the
// endpoints themselves, their events and their timers.
//
// A backend's Poll consists of Begin, the backend's own devices, Work, and End. If messages over
// sockets are its most likely input, Input::kLikely reads the endpoint that brought the last one
// (ReadExpected); if its completions are in memory, kLikely reads no socket.
//
// A connection is unproved from its first byte until its endpoint is authorised. The hub bounds the
// descriptors of all of them, data streams included: beyond DescriptorsForUnproved the oldest one
// ends, and so it does if the process has none left for a new one.
//
// Lifetime: endpoints may outlive the hub; after Close they are useless.
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_ENDPOINT_HUB_H_
#define KVXFER_TRANSPORT_ENDPOINT_HUB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
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
#include "src/transport/receive_space.h"
#include "src/transport/sockets/address.h"
#include "src/transport/sockets/linger.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::net {

class ControlEndpoint;

// A control stream that a peer has opened. It is watched already, and the welcome was sent.
struct Incoming {
  Fd control;
  std::string from;    // the peer's address
  uint32_t rails = 0;  // that the peer asks for
  LinkId link{};       // of the welcome
};

class EndpointHub final : private Listener::Acceptor {
 public:
  // The backend that uses the hub.
  class Client {
   public:
    virtual ~Client() = default;
    virtual std::unique_ptr<ControlEndpoint> Accept(Incoming incoming) = 0;
    // A stream that is no control stream of the hub's service. A client that takes it calls
    // Reactor::Change or Reactor::Remove. False: it was not taken.
    virtual bool TakeStream(Fd& /*fd*/, const Preamble& /*preamble*/, const std::string& /*from*/) {
      return false;
    }
    // The backend's own deadline, beside those of endpoints; asked in every turn.
    virtual std::optional<Time> deadline() const { return std::nullopt; }
    virtual void OnDeadline(Time /*now*/) {}
  };
  struct Settings {
    std::string backend{};  // begins errors, e.g. "verbs"
    Service service{};
    Incarnation incarnation{};
    Duration connect_timeout{};
    // `listen` and `advertise` of AgentOptions give the port of this backend. Otherwise they give
    // only the host.
    bool has_agent_port = false;
    // Data streams join an endpoint, by the id in its welcome, and the backend calls Report after
    // the first one. Otherwise an endpoint is reported at once.
    bool has_data_streams = false;
  };

  EndpointHub(Settings settings, Client* client);
  ~EndpointHub() override;

  // Must be called first.
  absl::Status Open();
  // Listens at `own`, the value of the option that errors call `own_name`. If that is empty,
  // listens at `options.listen`.
  absl::Status Listen(const AgentOptions& options, const std::string& own,
                      std::string_view own_name);
  // Listens at one more address, and returns it with its port.
  absl::StatusOr<SocketAddress> ListenAlso(const SocketAddress& at);
  // Detaches every endpoint, and drops the events that were not reported.
  void Close();

  // What peers need to connect, and its text (src/transport/sockets/address.h); and "host:port".
  PeerAddress Own() const { return {settings_.incarnation, advertised_}; }
  std::string Address() const { return EncodeAddress(Own()); }
  std::string ListenAddress() const { return listeners_.front()->address().ToString(); }
  // Starts connecting an endpoint that the backend has made.
  void Dial(ControlEndpoint* endpoint);
  // An accepted endpoint is usable: reports it to the agent, which owns it from here on.
  void Report(ControlEndpoint* endpoint);

  // --- turns ---
  // False: waiting events fill `out`, and Work must not be called.
  bool Begin(std::span<Event> out, bool readable);
  // Reads the control stream of the endpoint that brought the last message.
  void ReadExpected();
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
  // The endpoints' control streams receive into it. Each Poll begins a turn of it.
  ReceiveSpace& receive_space() { return receive_space_; }
  // All endpoints that are not destroyed.
  const std::vector<ControlEndpoint*>& endpoints() const { return endpoints_; }
  // Counts the calls of Begin.
  uint64_t poll_number() const { return poll_number_; }
  // The deadline of `endpoint` may have changed: the next SetTimer asks it.
  void Reschedule(ControlEndpoint* endpoint);
  void Activate(ControlEndpoint* endpoint);
  // A message has arrived over `endpoint`: another one may follow soon.
  void Expect(ControlEndpoint* endpoint) {
    expected_ = endpoint;
    looks_ = 0;
  }
  void Forget(ControlEndpoint* endpoint);
  // An accepted endpoint is authorised, or down.
  void NotUnproved(ControlEndpoint* endpoint);
  // Answers a stream whose preamble came, and stops watching it.
  void Refuse(const Fd& fd, WelcomeCode code);
  // Closes the streams of an endpoint once the peer has read what its control stream still sends.
  void Linger(Fd control, std::vector<Fd> data, std::string queued);

 private:
  void OnPreamble(Fd fd, const Preamble& preamble, const std::string& from) override;
  void KeepShare() override;
  bool EndOldestUnproved() override;
  size_t UnprovedDescriptors() const;
  void Accept(Fd fd, const Preamble& preamble, const std::string& from);
  void WorkEndpoints();
  void OnDeadlines();
  void SetTimerOf(ControlEndpoint* endpoint);
  std::optional<Time> NextDeadline() const;

  const Settings settings_;
  Client* const client_;
  std::unique_ptr<Reactor> reactor_;
  EventSink sink_;
  ReceiveSpace receive_space_;
  std::vector<SocketAddress> advertised_;
  uint64_t poll_number_ = 0;
  std::vector<ControlEndpoint*> endpoints_;
  std::vector<ControlEndpoint*> active_;  // endpoints that may have work
  size_t turn_ = 0;                       // the endpoint in active_ that goes first
  ControlEndpoint* expected_ = nullptr;   // the endpoint that brought the last message
  uint32_t looks_ = 0;                    // how often another one was looked for since
  std::vector<std::unique_ptr<ControlEndpoint>> half_open_;  // not reported yet, oldest first
  struct Unproved {
    Time since;
    ControlEndpoint* endpoint;
  };
  std::vector<Unproved> unproved_;  // accepted, not authorised and not down; oldest first
  Lingerers lingering_;
  // Endpoints that have a deadline, each by the one that it had when it was last asked
  // (ControlEndpoint::timer).
  std::set<std::pair<Time, ControlEndpoint*>> timers_;
  std::vector<ControlEndpoint*> rescheduled_;  // endpoints to ask for their deadlines
  bool timers_changed_ = false;                // the timer is to be set anew
  std::optional<Time> next_deadline_;          // what it is set to
  // Declared last, so destroyed first: listeners pass streams to the members above.
  std::vector<std::unique_ptr<Listener>> listeners_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_ENDPOINT_HUB_H_
