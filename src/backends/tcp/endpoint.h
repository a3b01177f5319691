// A connection to one peer: one control stream and rails() data streams.
//
// States on the connecting side: kDialling (until the control stream is welcomed), kJoining (data
// streams join), kUp, kDown. States on the accepting side: kJoining, kUp, kDown; the endpoint
// belongs to the backend until it is up, then to the agent. Once it is kDown, it no longer writes
// or reads local memory.
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
#include "src/core/base/clock.h"
#include "src/transport/control_stream.h"
#include "src/transport/dialler.h"
#include "src/transport/event_sink.h"
#include "src/transport/fence_book.h"
#include "src/transport/rail_life.h"
#include "src/transport/sockets/address.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::tcp {

class TcpBackend;

class TcpEndpoint final : public Endpoint, public net::StreamClient {
 public:
  // Connecting side. Call Dial next.
  TcpEndpoint(TcpBackend* backend, net::PeerAddress peer, Paths paths);
  // Accepting side, with the control stream's socket, which is watched already.
  TcpEndpoint(TcpBackend* backend, net::Fd control, std::string peer, uint32_t rails, LinkId id);
  ~TcpEndpoint() override;

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override;
  bool Post(const Op& op) override;
  bool Send(std::span<const std::byte> message) override;
  void Fence(FenceScope scope) override;
  void ReopenRail(uint32_t rail) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- for the backend ---
  void Dial();
  // Accepting side: takes the socket of the data stream that `preamble` names, which is watched
  // already. False: the stream belongs to another endpoint or to an earlier life, and `*fd` is left
  // alone.
  bool Join(const Preamble& preamble, net::Fd* fd);
  bool joining() const { return state_ == State::kJoining; }
  // The first data stream has joined: notifies the peer. The caller reports the endpoint to the
  // agent.
  void GoUp();
  // One turn: a bounded amount of all work that is due.
  void Work();
  bool HasWork() const;
  // Reads the control stream, unless frames that it brought earlier are not handled yet.
  void ReadControl();
  std::optional<Time> deadline() const { return deadline_; }
  void OnDeadline();
  void OnRegionClosed(const net::Region* region);
  // The backend is being destroyed first.
  void Detach();
  const LinkId& id() const { return id_; }
  uint32_t rails() const { return static_cast<uint32_t>(rails_.size()); }
  bool down() const { return state_ == State::kDown; }
  bool active = false;  // in the backend's active_
  bool timed = false;   // in the backend's waiting_

  // --- for the streams ---
  bool up() const { return state_ == State::kUp; }
  bool connecting() const { return side_ == Side::kConnecting; }
  net::Reactor& reactor() override;
  net::EventSink& sink();
  net::RegionMap& regions();
  std::span<std::byte> scratch();
  void Activate() override;
  // Reads the control stream. False: messages arrived, or the endpoint went down. The agent must
  // see the messages before more data is written to memory.
  bool ControlIsQuiet();
  // Bytes were sent whose acknowledgements must be watched. Returns the current time.
  Time WatchAcknowledgements();
  bool IsFenced(uint64_t transfer) const { return fences_.IsFenced(transfer); }
  // `rail`: rails() for the control stream, whose marker names the lives of the others (`through`).
  void OnMarker(uint64_t transfer, uint32_t rail, std::span<const uint32_t> through = {});
  void OnImmediate(uint32_t rail, uint32_t immediate);
  void OnCompletion(uint64_t op, uint32_t rail, absl::Status status);

 private:
  enum class Side : uint8_t { kConnecting, kAccepting };
  enum class State : uint8_t { kDialling, kJoining, kUp, kDown };

  std::string Name() const;
  void ReleaseStreams();
  // Ends the endpoint: completes its ops and notifies the agent, and the peer if `tell`.
  void Down(absl::Status why, bool tell);
  // Down because of an error on a stream. The peer is notified unless the network failed.
  void Fail(const absl::Status& status, std::string_view stream);
  void Emit(EventKind kind, absl::Status status = {});

  // link_fence.cc
  void FenceTransfer(uint64_t transfer);
  void EmitFenced(FenceScope scope, uint32_t answers = 1);

  // link_connect.cc
  void WorkConnecting();
  void FollowDialler();
  void TryGoUp(bool late);
  void OnJoinDeadline();
  void Schedule(Time when);

  // link_rails.cc
  void EmitRail(EventKind kind, uint32_t rail, absl::Status status = {});
  std::string DescribePath() const;
  RailInfo DescribeRail(uint32_t rail) const;
  void FenceRail(uint32_t rail);
  std::string PathOf(uint32_t rail) const;
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

  void WorkUp();
  void SendRails();
  void ReceiveRails();
  enum class Control : uint8_t { kQuiet, kMessages, kDown };
  Control ReceiveControl(bool look);
  Control OnControlFrame(const net::ControlStream::Frame& frame);

  absl::Status CheckOp(const Op& op) const;
  void SendPosted(TcpRail& rail);

  // link_inline.cc
  bool PostInline(const Op& op);
  void PushInlineMarker(uint64_t transfer);
  void OnInlineMarker(uint64_t transfer, std::span<const std::byte> lives);
  absl::Status OnInlineFrame(std::span<const std::byte> frame);
  absl::Status LandInline(const FrameHead& head, std::span<const std::byte> runs,
                          std::span<const std::byte> payload);
  // A write arrived on the control stream and must wait until the endpoint is authorised.
  bool HoldsInline() const;

  TcpBackend* backend_;
  const Side side_;
  State state_;
  const std::string accepted_;  // accepting side: the peer's address
  LinkId id_{};
  bool authorized_;
  bool reported_;                 // the agent knows this endpoint
  absl::Status cause_;            // why it is kDown
  std::optional<Time> deadline_;  // the earliest of all deadlines
  net::ControlStream control_;
  std::optional<net::Dialler> dialler_;  // connecting side
  std::optional<Paths> paths_;           // connecting side
  std::vector<RailLife> lives_;          // connecting side, for each rail
  std::optional<Time> join_by_;          // while joining: when to go up with the rails that are up
  Time give_up_{};                       // while joining: when to give up
  bool ready_ = false;                   // connecting side: the target has reported the endpoint
  std::optional<Time> look_at_;          // when to look at the acknowledgements
  std::vector<std::unique_ptr<TcpRail>> rails_;
  FenceBook fences_;
  uint64_t message_poll_ = 0;  // the Poll that last reported messages of this endpoint
  size_t turn_ = 0;            // the rail that goes first in the next turn
  uint32_t passed_over_ = 0;   // Polls in a row in which messages kept data streams unread
  bool landing_due_ = false;   // the next read of a data stream does not ask for messages first
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_ENDPOINT_H_
