// The connecting side of a verbs endpoint: dials, learns the peer's ports, makes the rails, posts.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_DIALLED_H_
#define KVXFER_BACKENDS_VERBS_DIALLED_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/backends/verbs/endpoint.h"
#include "src/backends/verbs/pairs.h"
#include "src/backends/verbs/rail.h"
#include "src/backends/verbs/regions.h"
#include "src/backends/verbs/scratch.h"
#include "src/transport/fence_waits.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::verbs {

class VerbsDialledEndpoint final : public VerbsEndpoint, private VerbsRemoteKey::Holder {
 public:
  VerbsDialledEndpoint(VerbsBackend* backend, net::PeerAddress peer, Scratch::Slot scratch);
  ~VerbsDialledEndpoint() override;

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override {}
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  uint32_t rail_distance(uint32_t rail, const Registration& local,
                         const RemoteKey& remote) const override;
  void ReopenRail(uint32_t rail) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- VerbsEndpoint ---
  void SayHello() override {}
  void OnUncovered(const Device& device, const absl::Status& why) override;
  void OnSetUp(uint32_t rail, absl::Status status, std::unique_ptr<QueuePair> pair) override;
  void OnDestroyed(uint32_t rail, Device& device, uint32_t number) override;

  // --- for its rails ---
  VerbsBackend& backend() const { return *backend_; }
  Device& local_device(size_t port) const;
  const LocalPort& local_port(size_t port) const;
  absl::Status RefreshPort(size_t port);
  const std::vector<PortInfo>& remote_ports() const { return remote_; }
  // OK, or why a rail to that device of the peer cannot be used: a region of the peer is not
  // registered with it.
  absl::Status CheckKeys(size_t remote_device) const;
  const Scratch::Slot& scratch() const { return scratch_; }
  std::string PeerName() const { return Name(); }
  using VerbsEndpoint::Tell;
  void OpDone(uint32_t rail, const Flight& flight, absl::Status status);
  void FlushDone();
  void RailUp(uint32_t rail);
  void RailDown(uint32_t rail, const absl::Status& why);
  // `flight` put its queue pair into error with `status`. True: the same transfer and remote
  // address have done that before.
  bool FailedBefore(const Flight& flight, ibv_wc_status status);
  // True: every op's memory has one key per device and can be read by the CPU.
  bool plain() const;
  // The best pair for `rail` that is not in `bad`.
  std::optional<Pair> OtherPair(uint32_t rail, std::span<const Pair> bad) const;
  void OnAttemptFailed();

 private:
  // An op that put its queue pair into error.
  struct Culprit {
    uint64_t transfer = 0;
    uint64_t remote = 0;
    ibv_wc_status status{};
  };

  bool HasRailWork() const override { return flushes_ == 0 && !stopped_.empty(); }
  void RailTurn() override {
    if (HasRailWork()) StartFlush();
  }
  void OnRailPort(const Device& device, uint8_t port, ibv_event_type type) override;
  void OnRailQueuePair(const Device& device, uint32_t number, const absl::Status& why) override;
  void OnRailDevice(const Device& device, const absl::Status& why) override;
  std::optional<Time> RailDeadline() const override;
  void OnRailDeadline(Time now) override;
  absl::Status OnDecoded(Blob& blob) override;
  void EndRails(const absl::Status& why) override;
  bool RailsAreQuiet() const override;
  void OnClosed(const VerbsRemoteKey& key) override;
  void OnPorts(Ports ports);
  absl::Status OnPortsAgain(Ports ports);
  bool IsValid(const Op& op) const;
  absl::Status CheckRequests(const Op& op, uint32_t requests) const;
  bool Refuse(const Op& op, absl::Status why);
  std::string Path() const;
  RailInfo InfoOf(const VerbsRail& rail) const;
  void FenceDone(uint64_t transfer);
  void StartFlush();
  std::vector<uint64_t> Progress() const;
  void CheckStuckFences(Time now);

  const Scratch::Slot scratch_;
  std::vector<PortInfo> remote_;
  std::vector<std::unique_ptr<VerbsRail>> rails_;
  std::map<const VerbsRemoteKey*, RegionId> partial_;  // keys that lack a device of the peer
  size_t keys_in_parts_ = 0;
  // Rails whose requests make no progress for this long while a transfer stops are ended.
  StoppingTransfers stopping_{std::chrono::milliseconds(500)};
  std::vector<uint64_t> stopped_;   // reported to the peer after the next flush
  std::vector<uint64_t> flushing_;  // reported to the peer after the current flush
  size_t flushes_ = 0;              // rails of the current flush that are not done
  std::deque<Culprit> culprits_;    // the most recent ones
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_DIALLED_H_
