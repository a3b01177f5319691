// A connection to one peer: one control stream (src/transport/control_endpoint.h) and rails() data
// streams, which join it while it is greeting(). The first one that does makes an accepted endpoint
// known to the agent. An endpoint that is down() no longer writes or reads local memory.
//
// A data stream that breaks takes only its rail out of use. The end of the control stream, or a
// violation of the protocol on any stream, takes the endpoint down. Closing the socket is the fence
// of a rail: afterwards the accepting side writes nothing that is still under way on it.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_TCP_ENDPOINT_H_
#define KVXFER_BACKENDS_TCP_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/paths.h"
#include "src/backends/tcp/rail.h"
#include "src/backends/tcp/stage_pool.h"
#include "src/core/base/clock.h"
#include "src/transport/control_endpoint.h"
#include "src/transport/fence_book.h"
#include "src/transport/rail_life.h"

namespace kvxfer::tcp {

class TcpBackend;

class TcpEndpoint final : public net::ControlEndpoint {
 public:
  // Connecting side.
  TcpEndpoint(TcpBackend* backend, net::PeerAddress peer, Paths paths);
  // Accepting side.
  TcpEndpoint(TcpBackend* backend, net::Incoming incoming);

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override;
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  void ReopenRail(uint32_t rail) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- for the backend ---
  // Accepting side: whether the data stream that begins with `preamble` belongs to this endpoint.
  bool Expects(const Preamble& preamble) const;
  // Takes the socket of such a stream, which is watched already. False: it is of an earlier life,
  // and `fd` is left alone.
  bool Join(const Preamble& preamble, net::Fd& fd);
  void OnRegionClosed(const net::Region* region);

  // --- for the streams ---
  using ControlEndpoint::sink;
  net::RegionMap& regions();
  std::span<std::byte> scratch();
  StagePool& stages();
  // Reads the control stream. False: messages arrived, or the endpoint went down. The agent must
  // see the messages before more data is written to memory.
  bool ControlIsQuiet();
  // Bytes were sent whose acknowledgements must be watched. Returns the current time.
  Time WatchAcknowledgements();
  bool IsFenced(uint64_t transfer) const { return fences_.IsFenced(transfer); }
  // `rail`: rails() for the control stream, whose marker names the lives of the others (`through`).
  void OnMarker(uint64_t transfer, uint32_t rail, std::span<const uint32_t> through = {});
  void OnImmediate(uint32_t rail, uint32_t immediate);
  void OnCompletion(uint64_t op, uint32_t rail, absl::Status status) {
    Say(EventKind::kCompletion, op, std::move(status), rail);
  }

 private:
  uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }

  // --- ControlEndpoint ---
  void SayHello() override;
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override { return true; }
  std::optional<Time> DataDeadline() const override;
  void OnDataDeadline(Time now) override;
  void OnDetached() override;
  void OnWelcome() override;
  void Turn() override;
  bool HasDataWork() const override;
  bool MustWait(ControlKind kind, bool after_message) const override;
  bool TakeReady() override;
  void OnGreetingDeadline() override;
  size_t DataDescriptors() const override;
  std::vector<net::Fd> ReleaseData() override;

  // endpoint_fence.cc
  void FenceTransfer(uint64_t transfer);
  void EmitFenced(FenceScope scope, uint32_t answers = 1);

  // endpoint_connect.cc
  void TryGoUp(bool late);

  // endpoint_rails.cc
  std::string DescribePath() const;
  RailInfo DescribeRail(uint32_t rail) const;
  void FenceRail(uint32_t rail);
  std::string PathOf(uint32_t rail) const;
  using ControlEndpoint::Where;
  std::string Where(uint32_t rail) const;
  std::optional<RailPair> OtherPair(uint32_t rail, std::span<const RailPair> bad) const;
  void StartRail(uint32_t rail);
  void WorkDialling();
  void AttemptFailed(uint32_t rail, const absl::Status& why);
  void RailIsUp(uint32_t rail);
  void RailTimers(Time now);
  void CheckAcknowledgements(Time now);
  // A stream failed with `status`: takes the rail out of use, or the endpoint down.
  void RailFailed(uint32_t rail, const absl::Status& status);
  void DropHungUp();
  void CloseEnd(uint32_t rail, const absl::Status& why);
  absl::Status OnStreamLost(std::span<const std::byte> frame);

  void TurnUp();
  void SendRails();
  void ReceiveRails();
  bool CanReceive() const;
  absl::Status CheckOp(const Op& op) const;
  void SendPosted(TcpRail& rail);

  // endpoint_inline.cc
  bool PostInline(const Op& op);
  void PushInlineMarker(uint64_t transfer);
  void OnInlineMarker(uint64_t transfer, std::span<const std::byte> lives);
  absl::Status OnInlineFrame(std::span<const std::byte> frame);
  absl::Status LandInline(const FrameHead& head, std::span<const std::byte> runs,
                          std::span<const std::byte> payload);

  TcpBackend* backend_;  // null once detached
  const LinkId id_{};    // accepting side
  bool authorized_;
  std::optional<Paths> paths_;   // connecting side
  std::vector<RailLife> lives_;  // connecting side, for each rail
  // Connecting side, greeting(): when to go up with the rails that are up.
  std::optional<Time> join_by_;
  bool ready_ = false;           // connecting side: the target has reported the endpoint
  std::optional<Time> look_at_;  // when to look at the acknowledgements
  std::vector<std::unique_ptr<TcpRail>> rails_;
  FenceBook fences_;
  size_t turn_ = 0;           // the rail that goes first in the next turn
  uint32_t passed_over_ = 0;  // Polls in a row in which messages kept data streams unread
  bool landing_due_ = false;  // the next read of a data stream does not ask for messages first
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_ENDPOINT_H_
