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
#include "src/backends/tcp/data_thread.h"
#include "src/backends/tcp/paths.h"
#include "src/backends/tcp/rail.h"
#include "src/backends/tcp/rail_host.h"
#include "src/backends/tcp/stage_pool.h"
#include "src/core/base/clock.h"
#include "src/transport/control_endpoint.h"
#include "src/transport/fence_book.h"
#include "src/transport/rail_life.h"

namespace kvxfer::tcp {

class TcpBackend;

class TcpEndpoint final : public net::ControlEndpoint, public RailHome {
 public:
  // Connecting side.
  TcpEndpoint(TcpBackend* backend, net::PeerAddress peer, Paths paths);
  // Accepting side.
  TcpEndpoint(TcpBackend* backend, net::Incoming incoming);
  ~TcpEndpoint() override;

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
  // The region is being closed, and the backend holds every data thread. Returns the rail over
  // which the peer writes to it, if there is one; OnRegionWritten then ends the endpoint, once the
  // threads go on.
  std::optional<uint32_t> ReleaseRegion(const net::Region* region);
  void OnRegionWritten(uint32_t rail);

  // --- RailHome ---
  bool CanTakeEvents() const override;
  // Reads the control stream. False: messages arrived, or the endpoint went down. The agent must
  // see the messages before more data is written to memory: an abort or a fence that the peer sent
  // before these bytes takes effect before they are written. The control stream may also say that
  // the rail is lost.
  bool MayRead() override;
  std::span<std::byte> scratch() override;
  StagePool& stages() override;
  absl::StatusOr<const net::Region*> Check(const net::WireRun& run, Access wanted) override;
  void OnMarker(uint64_t transfer, uint32_t rail) override {
    EmitFenced({.transfer = transfer}, fences_.OnMarker(transfer, rail));
  }
  void OnImmediate(uint32_t rail, uint32_t immediate) override;
  void OnCompletion(uint64_t op, uint32_t rail, absl::Status status) override {
    Say(EventKind::kCompletion, op, std::move(status), rail);
  }
  void OnSent(uint32_t rail) override;
  void OnLentFailed(uint32_t rail, uint32_t life, const absl::Status& why) override;

 private:
  // A rail that the driver may call while this lives: its own, or one whose thread is held.
  class Held {
   public:
    Held(TcpRail* rail, LentRail* lent) : rail_(rail) {
      if (lent != nullptr) hold_.emplace(lent->thread());
    }
    TcpRail* operator->() const { return rail_; }

   private:
    std::optional<DataThread::Hold> hold_;
    TcpRail* const rail_;
  };

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

  // endpoint_lend.cc
  void LendRails();
  void Recall(uint32_t rail);
  void RecallAll();
  // Takes the rails back, and nobody is told what happened on them.
  void LeaveThreads();
  Held Hold(uint32_t rail) const { return {rails_[rail].get(), lent_[rail].get()}; }
  // The driver itself moves the bytes of the rail.
  bool AtHome(uint32_t rail) const { return lent_[rail] == nullptr; }

  // endpoint_fence.cc
  void FenceTransfer(uint64_t transfer);
  void EmitFenced(FenceScope scope, uint32_t answers = 1);
  void AllowAgain(uint64_t transfer);

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
  std::vector<std::unique_ptr<LentRail>> lent_;  // for each rail; null: it is at home
  FenceBook fences_;
  std::vector<uint64_t> answered_;  // fences that lent rails still discard the frames of
  size_t turn_ = 0;                 // the rail that goes first in the next turn
  uint32_t passed_over_ = 0;        // Polls in a row in which messages kept data streams unread
  bool landing_due_ = false;  // the next read of a data stream does not ask for messages first
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_ENDPOINT_H_
