// A connection to one peer: one control stream and `rails` data streams.
//
// Life, connecting side: kDialling (until the control stream is welcomed), kJoining (data streams
// join), kUp, kDown. Accepting side: kJoining,
// kUp, kDown; it belongs to the backend until it is up, then to the agent.
// Nothing lands and nothing is read from local memory once it is kDown.
//
// A data stream that breaks takes only its rail out of use; the control stream, and whatever breaks
// the protocol, takes the link down. Closing the socket is the fence of a rail: at the accepting
// side nothing lands from it any more, whatever is on the way.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_TCP_LINK_H_
#define KVXFER_BACKENDS_TCP_LINK_H_

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
#include "src/transport/sockets/address.h"
#include "src/transport/sockets/reactor.h"

namespace kvxfer::tcp {

class TcpBackend;

class Link final : public Endpoint, public net::StreamOwner {
 public:
  // Connecting side; call Dial next.
  Link(TcpBackend* backend, net::PeerAddress peer, Paths paths);
  // Accepting side, with the control stream's socket, which is watched already.
  Link(TcpBackend* backend, net::Fd control, std::string peer, uint32_t rails, LinkId id);
  ~Link() override;

  // --- Endpoint ---
  uint32_t rails() const override { return static_cast<uint32_t>(rails_.size()); }
  std::string Describe() const override;
  void Authorize() override;
  size_t Post(std::span<const Op> ops) override;
  bool Send(std::span<const std::byte> message) override;
  void Fence(uint64_t transfer) override;
  bool rail_up(uint32_t rail) const override;
  RailInfo rail_info(uint32_t rail) const override;
  void FenceRail(uint32_t rail) override;
  void ReopenRail(uint32_t rail) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- for the backend ---
  void Dial();
  // Accepting side: takes the socket of the data stream that `preamble` names, watched already.
  // False: it is not of this link, or of a life that is over, and `*fd` is left alone.
  bool Join(const Preamble& preamble, net::Fd* fd);
  bool joining() const { return state_ == State::kJoining; }
  // The first data stream has joined: tells the peer; the caller reports it to the agent.
  void GoUp();
  // One turn: a bounded amount of all there is to do.
  void Work();
  bool HasWork() const;
  // Reads the control stream, unless what it brought before is not seen to yet.
  void Peek();
  std::optional<Time> deadline() const { return deadline_; }
  void OnDeadline();
  void OnRegionClosed(const net::Region* region);
  // The backend goes first.
  void Detach();
  const LinkId& id() const { return id_; }
  bool down() const { return state_ == State::kDown; }
  bool active = false;  // in the backend's list of links with work
  bool timed = false;   // in its list of links that may have a deadline

  // --- for the streams ---
  bool up() const { return state_ == State::kUp; }
  bool connecting() const { return side_ == Side::kConnecting; }
  net::Reactor& reactor() override;
  net::EventSink& sink();
  net::RegionMap& regions();
  std::span<std::byte> scratch();
  void Activate() override;
  // Looks at the control stream's socket. False: messages came in (or the link went down), and the
  // agent must see them before more lands.
  bool ControlIsQuiet();
  // Bytes left whose acknowledgement is to be seen to; returns what time it is.
  Time WatchAcknowledgements();
  bool IsFenced(uint64_t transfer) const { return fences_.IsFenced(transfer); }
  // `rail`: rails() for the control stream, whose marker has the lives of the others.
  void OnMarker(uint64_t transfer, uint32_t rail, std::span<const uint32_t> through = {});
  void OnImmediate(uint32_t rail, uint32_t immediate);
  void OnCompletion(uint64_t op, uint32_t rail, absl::Status status);

 private:
  enum class Side : uint8_t { kConnecting, kAccepting };
  enum class State : uint8_t { kDialling, kJoining, kUp, kDown };
  // What the connecting side knows of the making of one rail.
  struct RailDial {
    RailPair pair{};
    std::vector<RailPair> silent{};  // pairs that did not answer before it was up at all
    bool was_up = false;
    bool settled = false;            // it was up, or every pair was tried
    uint32_t failures = 0;           // attempts in a row
    uint32_t in_vain = 0;            // lives in a row that carried nothing of what they were given
    bool unheard = false;            // the last one ended with too little to count among those
    absl::Status why{};              // it is not up
    Time began{};                    // the attempt at hand
    Duration took{};                 // to connect, when that went well last; 0: it never did
    std::optional<Time> deadline{};  // of the attempt, or of the pause before the next
  };

  std::string Name() const;
  void ReleaseStreams();
  // Ends the link: completes its ops, tells the agent, and the peer where `tell`.
  void Down(absl::Status why, bool tell);
  // Down for what a stream said; the peer is told unless it was the network's doing.
  void Fail(const absl::Status& status, std::string_view stream);
  void Emit(EventKind kind, uint64_t id = 0, absl::Status status = {});

  // link_connect.cc
  void WorkConnecting();
  void FollowDialler();
  void TryGoUp(bool late);
  void OnJoinDeadline();
  void Schedule(Time when);

  // link_rails.cc
  void EmitRail(EventKind kind, uint32_t rail, absl::Status status = {});
  std::string PathOf(uint32_t rail) const;
  std::string Where(uint32_t rail) const;
  void StartRail(uint32_t rail);
  void WorkDialling();
  void AttemptFailed(uint32_t rail, const absl::Status& why);
  void RailIsUp(uint32_t rail);
  void RailTimers(Time now);
  void CheckAcknowledgements(Time now);
  // Its stream said `status`: takes the rail out of use, or the link down.
  void RailFailed(uint32_t rail, const absl::Status& status);
  void DropHungUp();
  void CloseEnd(uint32_t rail, const absl::Status& why);
  absl::Status OnRailLost(std::span<const std::byte> frame);

  void WorkUp();
  void SendRails();
  void ReceiveRails();
  enum class Control : uint8_t { kQuiet, kMessages, kDown };
  Control ReceiveControl(bool look);
  Control OnControlFrame(const net::ControlStream::Frame& frame);

  absl::Status CheckOp(const Op& op) const;

  // link_inline.cc
  bool PostInline(const Op& op);
  void PushInlineMarker(uint64_t transfer);
  void OnInlineMarker(uint64_t transfer, std::span<const std::byte> lives);
  absl::Status OnInlineFrame(std::span<const std::byte> frame);
  absl::Status LandInline(const FrameHead& head, std::span<const std::byte> runs,
                          std::span<const std::byte> payload);
  // A write came on the control stream that must not land yet.
  bool HoldsInline() const;

  TcpBackend* backend_;
  const Side side_;
  State state_;
  const std::string accepted_;  // accepting side: the peer's address
  LinkId id_{};
  bool authorized_;
  bool reported_;                 // the agent knows this endpoint
  absl::Status cause_;            // of kDown
  std::optional<Time> deadline_;  // the first of all that there are
  net::ControlStream control_;
  std::optional<net::Dialler> dialler_;  // connecting side
  std::optional<Paths> paths_;           // connecting side
  std::vector<RailDial> dials_;          // connecting side, of each rail
  std::optional<Time> join_by_;          // while joining: then it is seen what there is
  Time give_up_{};                       // and then it is enough
  bool ready_ = false;                   // connecting side: the target has reported the link
  std::optional<Time> look_at_;          // at the acknowledgements
  std::vector<std::unique_ptr<Rail>> rails_;
  FenceBook fences_;
  uint64_t message_poll_ = 0;  // number of the Poll that last reported messages of this link
  size_t turn_ = 0;            // rail that goes first in the next turn
  uint32_t passed_over_ = 0;   // Polls in a row in which no data stream was read, for messages
  bool landing_due_ = false;   // the next read of a data stream does not ask for messages first
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_LINK_H_
