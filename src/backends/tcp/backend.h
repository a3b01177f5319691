// The tcp backend: listeners, endpoints to peers, local regions, and one epoll set for all sockets.
//
// Lifetime: endpoints and registrations may outlive it; they then do nothing.
// Thread-safety: none, see kvxfer/backend.h; Register from any thread.

#ifndef KVXFER_BACKENDS_TCP_BACKEND_H_
#define KVXFER_BACKENDS_TCP_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/endpoint.h"
#include "src/backends/tcp/local_addresses.h"
#include "src/backends/tcp/options.h"
#include "src/transport/event_sink.h"
#include "src/transport/handouts.h"
#include "src/transport/listener.h"
#include "src/transport/regions.h"
#include "src/transport/sockets/linger.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::tcp {

class TcpBackend final : public Backend, private net::Listener::Acceptor {
 public:
  static absl::StatusOr<std::unique_ptr<TcpBackend>> Create(const BackendContext& context);
  ~TcpBackend() override;

  // --- Backend ---
  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

  // --- for endpoints and registrations ---
  net::Reactor& reactor() { return *reactor_; }
  net::EventSink& sink() { return sink_; }
  net::RegionMap& regions() { return regions_; }
  const AgentOptions& options() const { return options_; }
  // Counts the calls of Poll.
  uint64_t poll_number() const { return poll_number_; }
  // A buffer for one system call: for bytes that must not be written to memory, and for short runs
  // that go through it together.
  std::span<std::byte> scratch();
  void Activate(TcpEndpoint* endpoint);
  void Forget(TcpEndpoint* endpoint);
  // The endpoint's deadline has come nearer.
  void Watch(TcpEndpoint* endpoint);
  // A message has arrived over `endpoint`: another one may follow soon.
  void Expect(TcpEndpoint* endpoint) {
    expected_ = endpoint;
    looks_ = 0;
  }
  void Linger(net::Fd control, std::vector<net::Fd> data, std::string queued);

 private:
  TcpBackend(const BackendContext& context, TcpOptions options);

  absl::Status Listen();
  void DescribeListeners();
  void ReadExpected();
  bool ListenersHaveWork() const;
  void OnPreamble(net::Fd fd, const Preamble& preamble, const std::string& from) override;
  void OnControlPreamble(net::Fd fd, const Preamble& preamble, const std::string& from);
  void OnDataPreamble(net::Fd fd, const Preamble& preamble);
  void OnMetadataPreamble(net::Fd fd, const std::string& from);
  void WorkEndpoints();
  void OnDeadlines();
  std::optional<Time> NextDeadline() const;
  void SetTimer() { reactor_->SetTimer(NextDeadline()); }

  const AgentOptions options_;
  const TcpOptions tcp_;
  const Incarnation incarnation_;
  const HostIdentity host_;
  const std::function<std::shared_ptr<const std::string>()> metadata_;
  BackendInfo info_;
  std::unique_ptr<net::Reactor> reactor_;
  net::EventSink sink_;
  net::RegionMap regions_{[this](const net::Region* region) {
    for (TcpEndpoint* endpoint : endpoints_) endpoint->OnRegionClosed(region);
  }};
  std::vector<net::SocketAddress> advertised_;
  std::vector<LocalAddress> local_;  // that data streams are bound to
  uint64_t poll_number_ = 0;
  std::unique_ptr<std::byte[]> scratch_;

  std::vector<TcpEndpoint*> endpoints_;  // all endpoints that are not destroyed
  std::vector<TcpEndpoint*> active_;     // endpoints that may have work
  std::vector<TcpEndpoint*> waiting_;    // endpoints that may have a deadline
  size_t turn_ = 0;                      // the endpoint in active_ that goes first
  TcpEndpoint* expected_ = nullptr;      // the endpoint that brought the last message
  uint32_t looks_ = 0;                   // how often another one was looked for since
  std::vector<std::unique_ptr<TcpEndpoint>>
      half_open_;  // accepted and not reported yet, oldest first
  net::Lingerers lingering_;
  net::Handouts handouts_;
  // The listener for `listen`, then one for each of local_. Declared last, so destroyed first:
  // listeners pass sockets to the members above.
  std::vector<std::unique_ptr<net::Listener>> listeners_;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_BACKEND_H_
