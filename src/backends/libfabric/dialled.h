// The connecting side of an endpoint: offers a fabric endpoint for each rail, probes it, posts ops.
//
// A rail that fails is closed at once. After ReopenRail it is opened again (RailLife): it is
// kOffered until the peer has authorised the endpoint and opened its end, then kProbing until a
// write has completed and the peer has reported its immediate. An endpoint of which no rail ever
// came up ends when the last rail's attempt has failed.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_
#define KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/libfabric/end.h"
#include "src/backends/libfabric/endpoint.h"
#include "src/transport/fence_waits.h"
#include "src/transport/rail_life.h"

namespace kvxfer::libfabric {

class LibfabricDialledEndpoint final : public LibfabricEndpoint {
 public:
  LibfabricDialledEndpoint(LibfabricBackend* backend, net::PeerAddress peer)
      : LibfabricEndpoint(backend, std::move(peer)) {}
  ~LibfabricDialledEndpoint() override;

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override {}
  Posted Post(const Op& op) override;
  // Of a transfer; a rail is fenced by the accepting side.
  void Fence(FenceScope scope) override;
  void ReopenRail(uint32_t index) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- LibfabricEndpoint ---
  void SayHello() override {}
  bool busy() const override { return up() && reported_busy_; }
  void PollData() override;
  void Rest() override;
  bool unread() const override;

 private:
  struct DialledRail {
    RailLife life{};
    bool worked = false;  // an op of this life has completed
    bool probe_posted = false;
    bool probe_arrived = false;  // the probe's write has completed
    std::unique_ptr<End> end{};
    // Where the peer accepts writes without content, and the key for it.
    uint64_t sink = 0;
    uint64_t sink_key = 0;
    // Immediates of this life: sent; of these, reported by the peer as received; announced to the
    // peer.
    uint32_t sent = kFirstCount;
    uint32_t heard = kFirstCount;
    uint32_t announced = kFirstCount;
    uint32_t held_until = kFirstCount;  // no immediate is sent before this many have been received
  };

  absl::Status OnDecoded(const Frame& frame) override;
  absl::Status OnHello(const Hello& hello);

  // --- dialled_rails.cc ---
  void Attempt(uint32_t index);
  absl::Status OnAnswer(const Answer& answer);
  absl::Status OnCount(const Count& count);
  void OnLost(const RailLost& lost);
  void TryProbe(uint32_t index);
  void UpIfProbed(uint32_t index);
  // `ended`: ops of the rail that have completed with errors.
  void FailRail(uint32_t index, const absl::Status& why, std::span<const Done> ended = {});
  void OnRailDeadline(uint32_t index, Time now);

  // --- dialled_data.cc ---
  struct Pieces;
  // Walks the blocks. False: they name no registration, or no key for the op's rail.
  static bool Gather(const Op& op, Pieces& out);
  // Gathers `pieces`, if the op is one that can be posted.
  absl::Status CheckOp(const Op& op, Pieces& pieces) const;
  absl::StatusOr<bool> PostOp(const Op& op, Pieces& pieces, const Flight& flight);
  absl::StatusOr<bool> PostWrite(DialledRail& rail, End::Request request,
                                 std::optional<uint32_t> immediate);
  absl::StatusOr<bool> PostNothing(DialledRail& rail, std::optional<uint32_t> immediate,
                                   const Flight& flight);
  void TakeDone(uint32_t index, std::span<const Done> done, absl::Status status);
  void OnDone(uint32_t index, const Flight& flight);
  // The status that the op of `done` completes with.
  absl::Status OwnError(const Done& done);
  void OpDone(uint32_t rail, const Flight& flight, absl::Status status);
  void FenceDone(uint64_t transfer);
  // Announces the immediates that were sent.
  void TellCounts();
  std::vector<uint64_t> Progress() const;
  // Fails the rails on which a fenced transfer makes no progress.
  void CheckStuckFences(Time now);
  // Tells the peer to poll its completion queues: something is in flight, or may be soon.
  void BeBusy();
  bool InFlight() const;

  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }

  std::vector<DialledRail> rails_;
  bool reported_busy_ = false;  // Busy was sent, and no Idle since
  Time busy_until_{};           // until then there may be space for an op that was not accepted
  // The transfer's source is read while one of its ops is in flight, so a fence has to end in about
  // this time. A rail that has such an op and makes no progress is closed; the other ops on it are
  // posted again.
  StoppingTransfers stopping_{std::chrono::milliseconds(80)};
  // Identifies an op across retries, which have other ids.
  struct Culprit {
    uint64_t transfer = 0;
    uint64_t remote = 0;
    bool operator==(const Culprit&) const = default;
  };
  std::deque<Culprit> culprits_;  // ops that may have caused their errors themselves
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_DIALLED_H_
