// TcpEndpoint: its turns once it is up, the agent's calls, and its end.

#include "src/backends/tcp/endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::tcp {
namespace {

// How many bytes a data stream moves in one turn. Receiving has less, because with many peers it is
// what delays everything else in Poll.
constexpr size_t kSendTurnBytes = 4 * 1024 * 1024;
constexpr size_t kReceiveTurnBytes = 2 * 1024 * 1024;
// How many Polls in a row may leave the data streams unread because messages arrived.
constexpr uint32_t kMaxPassedOver = 4;
// The time from the control stream's preamble until a data stream has joined. At least 2 s, because
// the peer's connect_timeout may be longer than this side's.
constexpr Duration kJoinTimeout = std::chrono::seconds(2);

std::vector<std::unique_ptr<TcpRail>> MakeRails(TcpEndpoint* endpoint, uint32_t count) {
  std::vector<std::unique_ptr<TcpRail>> out;
  for (uint32_t i = 0; i < count; ++i) out.push_back(std::make_unique<TcpRail>(endpoint, i));
  return out;
}

}  // namespace

TcpEndpoint::TcpEndpoint(TcpBackend* backend, net::PeerAddress peer, Paths paths)
    : backend_(backend),
      side_(Side::kConnecting),
      state_(State::kDialling),
      authorized_(true),
      reported_(true),
      control_(this),
      paths_(std::move(paths)),
      rails_(MakeRails(this, static_cast<uint32_t>(paths_->rails()))),
      fences_(1) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    lives_.emplace_back(paths_->planned(i),
                        [this, i](std::span<const RailPair> bad) { return OtherPair(i, bad); });
  }
  dialler_.emplace("tcp peer", std::move(peer), kService, rails(),
                   backend->options().connect_timeout, &control_);
}

TcpEndpoint::TcpEndpoint(TcpBackend* backend, net::Fd control, std::string peer, uint32_t rails,
                         LinkId id)
    : backend_(backend),
      side_(Side::kAccepting),
      state_(State::kJoining),
      accepted_(std::move(peer)),
      id_(id),
      authorized_(false),
      reported_(false),
      deadline_(Now() + std::max<Duration>(backend->options().connect_timeout, kJoinTimeout)),
      control_(this),
      join_by_(deadline_),
      rails_(MakeRails(this, rails)),
      fences_(rails + 1) {
  // No data stream has joined yet, so a fence need not wait for their markers.
  for (uint32_t i = 0; i < rails; ++i) fences_.Close(i);
  control_.Adopt(std::move(control));
}

TcpEndpoint::~TcpEndpoint() {
  if (backend_ == nullptr) return;
  ReleaseStreams();
  backend_->Forget(this);
}

void TcpEndpoint::ReleaseStreams() {
  control_.Release();
  for (const auto& rail : rails_) rail->Release();
}

void TcpEndpoint::Detach() {
  ReleaseStreams();
  state_ = State::kDown;
  cause_ = absl::UnavailableError("the tcp backend is gone");
  backend_ = nullptr;
}

net::Reactor& TcpEndpoint::reactor() { return backend_->reactor(); }
net::EventSink& TcpEndpoint::sink() { return backend_->sink(); }
net::RegionMap& TcpEndpoint::regions() { return backend_->regions(); }
std::span<std::byte> TcpEndpoint::scratch() { return backend_->scratch(); }
void TcpEndpoint::Activate() { backend_->Activate(this); }

std::string TcpEndpoint::Name() const {
  if (side_ == Side::kAccepting) return accepted_;
  return dialler_->address().ToString();
}

void TcpEndpoint::Authorize() {
  authorized_ = true;
  if (!down()) Activate();
}

absl::StatusOr<std::unique_ptr<RemoteKey>> TcpEndpoint::Import(const RemoteRegion& region,
                                                               std::string_view) {
  return net::RkeyOnly::Of(region, "tcp", Name());
}

absl::Status TcpEndpoint::CheckOp(const Op& op) const {
  if (side_ == Side::kAccepting) {
    return absl::FailedPreconditionError(
        "tcp: ops are posted on the endpoint that connected; connect to the peer");
  }
  const BlockRange& blocks = op.blocks;
  if (op.rail < rails_.size() && op.transfer != 0 && blocks.pieces <= kMaxFrameRuns &&
      blocks.bytes <= kMaxFrameBytes && net::HaveKeys(blocks)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "tcp: op ", op.id, " (rail ", op.rail, ", ", blocks.pieces, " pieces, ", blocks.bytes,
      " bytes, transfer ", op.transfer, ") is beyond the backend's capabilities or lacks a key"));
}

bool TcpEndpoint::Post(const Op& op) {
  if (down()) return false;
  if (absl::Status status = CheckOp(op); !status.ok()) {
    OnCompletion(op.id, op.rail, std::move(status));
    return true;
  }
  TcpRail& rail = *rails_[op.rail];
  if (!up() || !rail.up()) return false;
  // A small write may share the control stream with the message that follows it.
  if (op.sole && PostInline(op)) return true;
  if (!rail.HasSpace()) return false;
  rail.Push(op);
  Activate();
  SendPosted(rail);
  return true;
}

// Small ops leave at once; a large backlog is left to Poll, so that Post stays short.
void TcpEndpoint::SendPosted(TcpRail& rail) {
  if (rail.queued_bytes() > kInlineCopyBytes || !rail.CanSend()) return;
  if (absl::Status sent = rail.Send(kInlineCopyBytes); !sent.ok()) RailFailed(rail.index(), sent);
}

bool TcpEndpoint::HasWork() const {
  if (down() || (!up() && !connecting())) return false;
  if (state_ == State::kDialling) return dialler_->HasWork();
  if (control_.sending() && control_.writable()) return true;
  // What follows `ready` waits until the endpoint is up.
  const bool hears = !(HoldsInline() || (joining() && ready_));
  if (hears && (control_.readable() || control_.HasFrame())) return true;
  for (const auto& rail : rails_) {
    if (rail->hung_up()) return true;
    if (rail->dialling()) {
      const bool greeting = rail->state() == TcpRail::State::kGreeting;
      if (greeting ? rail->readable() : rail->writable()) return true;
    } else if (up() && (rail->CanSend() || (authorized_ && rail->CanReceive()))) {
      return true;
    }
  }
  return false;
}

void TcpEndpoint::Work() {
  if (state_ == State::kUp) {
    WorkUp();
  } else if (side_ == Side::kConnecting && !down()) {
    WorkConnecting();
  }
}

void TcpEndpoint::WorkUp() {
  if (connecting()) WorkDialling();
  if (absl::Status sent = control_.Flush(); !sent.ok()) return Fail(sent, "control stream");
  // Endless messages must not delay data for ever: after kMaxPassedOver Polls, one read of a data
  // stream comes before the messages. An abort that is among them is answered after that read, so
  // nothing is written after the answer.
  if (passed_over_ >= kMaxPassedOver) {
    passed_over_ = 0;
    landing_due_ = true;
    ReceiveRails();
    landing_due_ = false;
    if (!up()) return;
  }
  const bool lands =
      std::ranges::any_of(rails_, [](const auto& rail) { return rail->CanReceive(); });
  const Control control = ReceiveControl(lands);
  if (control == Control::kDown) return;
  // Sending goes on when messages have arrived; only receiving waits until the agent has seen them.
  SendRails();
  if (up() && control == Control::kQuiet) ReceiveRails();
  passed_over_ = control == Control::kQuiet ? 0 : passed_over_ + 1;
  ++turn_;
}

void TcpEndpoint::SendRails() {
  for (size_t i = 0; i < rails_.size() && !sink().full(); ++i) {
    TcpRail& rail = *rails_[(turn_ + i) % rails_.size()];
    if (!rail.CanSend()) continue;
    if (absl::Status sent = rail.Send(kSendTurnBytes); !sent.ok()) RailFailed(rail.index(), sent);
    if (down()) return;
  }
}

void TcpEndpoint::ReceiveRails() {
  DropHungUp();
  if (!authorized_) return;
  for (size_t i = 0; i < rails_.size() && up() && !sink().full(); ++i) {
    TcpRail& rail = *rails_[(turn_ + i) % rails_.size()];
    // The agent must see a message before later data is written to memory.
    if (message_poll_ == backend_->poll_number()) return;
    if (!rail.CanReceive()) continue;
    if (absl::Status got = rail.Receive(kReceiveTurnBytes); !got.ok()) {
      RailFailed(rail.index(), got);
    }
  }
}

void TcpEndpoint::OnImmediate(uint32_t rail, uint32_t immediate) {
  sink().Emit(
      {.kind = EventKind::kImmediate, .endpoint = this, .rail = rail, .immediate = immediate});
}

void TcpEndpoint::OnCompletion(uint64_t op, uint32_t rail, absl::Status status) {
  if (backend_ == nullptr) return;
  sink().Say(EventKind::kCompletion, this, op, std::move(status), rail);
}

void TcpEndpoint::Emit(EventKind kind, absl::Status status) {
  sink().Say(kind, this, 0, std::move(status));
}

void TcpEndpoint::OnRegionClosed(const net::Region* region) {
  for (const auto& rail : rails_) {
    if (!up()) return;
    if (rail->ReleaseRegion(region)) continue;
    // The agent closes a region only once its peers have said that they write no more to it.
    Fail(absl::FailedPreconditionError("a region was deregistered while the peer wrote to it"),
         absl::StrCat("data stream ", rail->index()));
  }
}

void TcpEndpoint::Shutdown(absl::Status why) {
  if (why.ok()) why = absl::CancelledError("closed");
  if (!down()) Down(Annotate(why, absl::StrCat("tcp peer ", Name())), true);
}

void TcpEndpoint::Fail(const absl::Status& status, std::string_view stream) {
  if (down()) return;
  Down(Annotate(status, absl::StrCat("tcp peer ", Name(), ", ", ToAbsl(stream))),
       !absl::IsUnavailable(status));
}

void TcpEndpoint::Down(absl::Status why, bool tell) {
  const bool was_up = up();
  state_ = State::kDown;
  deadline_.reset();
  cause_ = std::move(why);
  for (const auto& rail : rails_) rail->CancelOps(0, cause_);
  if (tell && was_up) {
    const std::string reason = ForPeer(ToStd(cause_.message()));
    // If this fails, the connection is over anyway.
    control_.Push(ControlKind::kClosing, std::as_bytes(std::span(reason))).IgnoreError();
    // The sockets linger: closing them now would reset them, and the reset would overtake the
    // reason.
    std::vector<net::Fd> data;
    for (const auto& rail : rails_) data.push_back(rail->Release());
    std::string queued = control_.TakeQueued();
    backend_->Linger(control_.Release(), std::move(data), std::move(queued));
  } else {
    ReleaseStreams();
  }
  if (reported_) Emit(EventKind::kDown, cause_);
}

}  // namespace kvxfer::tcp
