// The ucx backend: one UCX worker for all endpoints, the paths to the peers' workers, and Poll's
// work for all of them.
//
//   backend.cc       construction, destruction and the agent's calls
//   backend_poll.cc  Poll: progress, hellos, sending, failed paths, frames without an endpoint
//
// Lifetime: endpoints and registrations may outlive it; they then do nothing.
// Thread-safety: none, see kvxfer/backend.h; Register from any thread.

#ifndef KVXFER_BACKENDS_UCX_BACKEND_H_
#define KVXFER_BACKENDS_UCX_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "kvxfer/backend.h"
#include "src/backends/ucx/endpoint.h"
#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/listener.h"
#include "src/backends/ucx/path.h"
#include "src/backends/ucx/worker.h"
#include "src/core/base/descriptor_share.h"
#include "src/transport/event_queue.h"
#include "src/transport/regions.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::ucx {

class UcxBackend final : public Backend, private FrameSink {
 public:
  // The limit of endpoints that peers opened. Beyond it the oldest one that is not authorised ends;
  // if all are, further ones are refused.
  static constexpr size_t kMaxAccepted = 1024;
  // The limit of those that are not authorised. Each may have a path of its own, which takes two
  // descriptors over tcp.
  static size_t MaxUnproved() { return DescriptorsForUnproved() / 2; }

  static absl::StatusOr<std::unique_ptr<Backend>> Create(const BackendContext& context);
  ~UcxBackend() override;

  const BackendInfo& Describe() const override { return info_; }
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, Input input) override;
  bool Arm() override;

  // --- for endpoints ---
  using Events = EventQueue<std::string>;
  Events& events() { return events_; }
  net::RegionMap& regions() { return regions_; }
  Worker& worker() { return *worker_; }
  const Incarnation& incarnation() const { return incarnation_; }
  const HostIdentity& host() const { return host_; }
  // `endpoint` may have something to send.
  void Activate(UcxEndpoint* endpoint);
  // The peer of `endpoint` has proved who it is.
  void Authorized(UcxEndpoint* endpoint);
  // The peer answered `endpoint`, which this side opened.
  void Welcomed(UcxEndpoint* endpoint) { std::erase(dialling_, endpoint); }
  // `endpoint` is down: its cookie no longer means anything. `told`: the peer has been sent a bye.
  void Forget(UcxEndpoint* endpoint, bool told);
  // `endpoint` is being destroyed.
  void Purge(UcxEndpoint* endpoint);

 private:
  // An endpoint that ended without a bye to the peer. The peer's next frame for it is answered by
  // one bye.
  struct Ended {
    std::string place;         // the place of its path
    uint64_t peer_cookie = 0;  // 0: not known
  };

  explicit UcxBackend(const BackendContext& context);
  std::string MakeAddress() const;
  void OnFrame(std::span<const std::byte> frame, ucp_ep_h from) override;
  void OnStray(const FrameHead& head, std::span<const std::byte> body);
  absl::StatusOr<Path*> PathTo(const std::string& place, std::optional<bool> reports_failure);
  Path::Parts parts() {
    return {.worker = worker_.get(), .pool = &pool_, .reactor = reactor_.get()};
  }
  void DropPath(Path* path);
  void Refuse(Path* path, uint64_t cookie, std::string_view why);
  void Progress(size_t space);
  void EndLateDials();
  void TakeConnections();
  void TakeHello();
  void Welcome(const Hello& hello, const std::string& place);
  // For one more accepted endpoint. False: all are authorised, and there are as many as may be.
  bool MakeSpace();
  void FailPaths();
  void TrimPaths();
  void SendAll();
  bool HasWork() const;

  BackendInfo info_;
  const Incarnation incarnation_;
  const HostIdentity host_;
  const Duration connect_timeout_;
  // The endpoints, paths and requests of UCX use the members above them, so they are destroyed
  // first.
  net::RegionMap regions_;
  std::unique_ptr<net::Reactor> reactor_;
  OutgoingPool pool_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Listener> listener_;                    // null without UcxOptions::listen
  std::map<std::string, std::unique_ptr<Path>> paths_;    // by place
  std::vector<std::unique_ptr<Path>> closing_;            // closed, but UCX still uses them
  std::unordered_map<uint64_t, UcxEndpoint*> endpoints_;  // endpoints that are not down, by cookie
  std::vector<UcxEndpoint*> active_;    // endpoints that may have something to send
  std::vector<UcxEndpoint*> dialling_;  // endpoints without an answer so far, oldest first
  // Which endpoint SendAll serves first.
  size_t turn_ = 0;
  size_t accepted_ = 0;                 // endpoints that peers opened, and that are not down
  std::vector<UcxEndpoint*> unproved_;  // those of them that are not authorised, oldest first
  // A hello that waits for an answer.
  struct Caller {
    Hello hello;
    std::string place;  // of the path that leads back to the caller
  };
  std::deque<Caller> callers_;
  std::unordered_map<uint64_t, Ended> ended_;
  std::deque<uint64_t> ended_order_;  // oldest first; may name cookies that were answered
  Events events_;
  bool left_over_ = false;  // the last Poll stopped at kProgressPerPoll with work left
  uint32_t busy_arms_ = 0;  // how often UCX refused to be armed since it last made progress
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_BACKEND_H_
