// The ucx backend: one worker for all its links, paths to the peers' workers, and the turns of all
// of them.
//
//   backend.cc       what the agent asks, making and ending
//   backend_poll.cc  turns: progress, hellos, sending, paths that fail; frames without a link
//
// Thread-safety: none; used by the backend's owner.

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
#include "src/backends/ucx/frames.h"
#include "src/backends/ucx/link.h"
#include "src/backends/ucx/listener.h"
#include "src/backends/ucx/path.h"
#include "src/backends/ucx/poller.h"
#include "src/backends/ucx/worker.h"
#include "src/transport/event_queue.h"
#include "src/transport/regions.h"

namespace kvxfer::ucx {

class UcxBackend final : public Backend, private FrameSink {
 public:
  // Links that peers opened; more are refused.
  static constexpr size_t kMaxAccepted = 1024;

  static absl::StatusOr<std::unique_ptr<UcxBackend>> Create(const BackendContext& context);
  ~UcxBackend() override;

  std::string_view name() const override { return "ucx"; }
  const Capabilities& capabilities() const override { return capabilities_; }
  std::string Address() const override;
  absl::Status Reachable(std::string_view address, const HostIdentity& host) const override;
  absl::StatusOr<std::unique_ptr<Endpoint>> Connect(std::string_view address,
                                                    const HostIdentity& host) override;
  absl::StatusOr<std::unique_ptr<Registration>> Register(const LocalRegion& region) override;
  size_t Poll(std::span<Event> out, bool readable) override;
  bool Arm() override;
  int wait_fd() const override { return poller_.fd(); }

  // --- for links ---
  using Events = EventQueue<std::string>;
  Events& events() { return events_; }
  net::RegionMap& regions() { return regions_; }
  Worker& worker() { return *worker_; }
  const Incarnation& incarnation() const { return incarnation_; }
  const HostIdentity& host() const { return host_; }
  // It may have something to send.
  void Activate(Link* link);
  // A link that this side opened was answered.
  void Welcomed(Link* link) { std::erase(dialling_, link); }
  // The link is down: its cookie means nothing any more. `told`: the peer knows, or will.
  void Forget(Link* link, bool told);
  // The link is being destroyed.
  void Purge(Link* link);

 private:
  // A link that is over without the peer's knowing: who still sends to it is told once.
  struct Ended {
    std::string place;         // of its path
    uint64_t peer_cookie = 0;  // 0: not known
  };

  explicit UcxBackend(const BackendContext& context);
  void OnFrame(std::span<const std::byte> frame, ucp_ep_h from) override;
  void OnStray(const FrameHead& head, std::span<const std::byte> body);
  absl::StatusOr<Path*> PathTo(const std::string& place, std::optional<bool> reports_failure);
  Path::Parts parts() { return {.worker = worker_.get(), .pool = &pool_, .poller = &poller_}; }
  void DropPath(Path* path);
  void Refuse(Path* path, uint64_t cookie, std::string_view why);
  void Progress(size_t room);
  void EndLateDials();
  void TakeConnections();
  void TakeHello();
  void Welcome(const Hello& hello, const std::string& place);
  void FailPaths();
  void TrimPaths();
  void SendAll();
  bool HasWork() const;

  Capabilities capabilities_;
  const Incarnation incarnation_;
  const HostIdentity host_;
  const Duration connect_timeout_;
  // Links, paths and requests of UCX point to what stands above them: they go first.
  net::RegionMap regions_;
  Poller poller_;
  OutgoingPool pool_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<Listener> listener_;                  // where peers connect by socket
  std::map<std::string, std::unique_ptr<Path>> paths_;  // by place
  std::vector<std::unique_ptr<Path>> closing_;
  std::unordered_map<uint64_t, Link*> links_;  // those that are not down, by cookie
  std::vector<Link*> active_;                  // that may have something to send
  std::vector<Link*> dialling_;                // not answered yet, oldest first
  size_t turn_ = 0;
  size_t accepted_ = 0;
  struct Caller {
    Hello hello;
    std::string place;  // of the path that leads back
  };
  std::deque<Caller> callers_;
  std::unordered_map<uint64_t, Ended> ended_;
  std::deque<uint64_t> ended_order_;  // oldest first; may name what was told
  Events events_;
  bool left_over_ = false;  // the last turn's progress stopped at its bound
  uint32_t busy_arms_ = 0;  // UCX would not be armed, so many times since it did anything
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_BACKEND_H_
