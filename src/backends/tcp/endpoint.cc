// TcpEndpoint: its turns once it is up, the agent's calls, and its end.

#include "src/backends/tcp/endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/transport/check_op.h"
#include "src/transport/event_queue.h"

namespace kvxfer::tcp {
namespace {

// How many bytes a data stream moves in one turn. Receiving has less, because with many peers it is
// what delays everything else in Poll.
constexpr size_t kSendTurnBytes = 4 * 1024 * 1024;
constexpr size_t kReceiveTurnBytes = 2 * 1024 * 1024;
// How many Polls in a row may leave the data streams unread because messages arrived.
constexpr uint32_t kMaxPassedOver = 4;

std::vector<std::unique_ptr<TcpRail>> MakeRails(TcpEndpoint* endpoint, uint32_t count) {
  std::vector<std::unique_ptr<TcpRail>> out;
  for (uint32_t i = 0; i < count; ++i) {
    out.push_back(std::make_unique<TcpRail>(endpoint, endpoint, endpoint->connecting(), i));
  }
  return out;
}

}  // namespace

TcpEndpoint::TcpEndpoint(TcpBackend* backend, net::PeerAddress peer, Paths paths)
    : ControlEndpoint(&backend->hub(), std::move(peer), static_cast<uint32_t>(paths.rails())),
      backend_(backend),
      authorized_(true),
      paths_(std::move(paths)),
      rails_(MakeRails(this, static_cast<uint32_t>(paths_->rails()))),
      lent_(rails_.size()),
      fences_(1) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    lives_.emplace_back(paths_->planned(i),
                        [this, i](std::span<const RailPair> bad) { return OtherPair(i, bad); });
  }
}

TcpEndpoint::TcpEndpoint(TcpBackend* backend, net::Incoming incoming)
    : ControlEndpoint(&backend->hub(), std::move(incoming.control), std::move(incoming.from)),
      backend_(backend),
      id_(incoming.link),
      authorized_(false),
      rails_(MakeRails(this, incoming.rails)),
      lent_(rails_.size()),
      fences_(incoming.rails + 1) {
  // No data stream has joined yet, so a fence need not wait for their markers.
  for (uint32_t i = 0; i < incoming.rails; ++i) fences_.Close(i);
}

TcpEndpoint::~TcpEndpoint() { LeaveThreads(); }

void TcpEndpoint::OnDetached() {
  LeaveThreads();
  for (const auto& rail : rails_) rail->Release();
  backend_ = nullptr;
}

bool TcpEndpoint::CanTakeEvents() const { return up() && !backend_->hub().sink().full(); }
std::span<std::byte> TcpEndpoint::scratch() { return backend_->scratch(); }
StagePool& TcpEndpoint::stages() { return backend_->stages(); }
absl::StatusOr<const net::Region*> TcpEndpoint::Check(const net::WireRun& run, Access wanted) {
  return backend_->regions().Check(run, wanted);
}

void TcpEndpoint::Authorize() {
  authorized_ = true;
  OnAuthorized();
  if (!down()) Activate();
}

absl::StatusOr<std::unique_ptr<RemoteKey>> TcpEndpoint::Import(const RemoteRegion& region,
                                                               std::string_view) {
  return net::RkeyOnly::Of(region, "tcp", Name());
}

absl::Status TcpEndpoint::CheckOp(const Op& op) const {
  const OpLimits limits{.rails = rails_.size(), .bytes = kMaxFrameBytes, .pieces = kMaxFrameRuns};
  absl::Status status = kvxfer::CheckOp(op, limits, "tcp");
  if (!status.ok() || net::HaveKeys(op.blocks)) return status;
  return absl::InvalidArgumentError(absl::StrCat("tcp: op ", op.id, " lacks a key"));
}

Posted TcpEndpoint::Post(const Op& op) {
  if (down()) return false;
  if (!connecting()) {
    Emit(MakeRefused(this, op, "tcp"));
    return true;
  }
  if (absl::Status status = CheckOp(op); !status.ok()) {
    OnCompletion(op.id, op.rail, std::move(status));
    return true;
  }
  TcpRail& rail = *rails_[op.rail];
  if (!up() || !rail.up()) return false;
  // A small write may share the control stream with the message that follows it.
  if (op.sole && PostInline(op)) return true;
  if (!AtHome(op.rail)) return lent_[op.rail]->Post(op);
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

bool TcpEndpoint::HasDataWork() const {
  for (uint32_t i = 0; i < rails(); ++i) {
    if (!AtHome(i)) continue;
    const TcpRail* const rail = rails_[i].get();
    if (rail->hung_up()) return true;
    if (rail->dialling()) {
      const bool greets = rail->state() == TcpRail::State::kGreeting;
      if (greets ? rail->readable() : rail->writable()) return true;
    } else if (up() && (rail->CanSend() || (authorized_ && rail->CanReceive()))) {
      return true;
    }
  }
  return false;
}

void TcpEndpoint::Turn() {
  if (connecting()) WorkDialling();
  if (up()) return TurnUp();
  DropHungUp();
  if (greeting()) ReceiveFrames();
}

void TcpEndpoint::TurnUp() {
  LendRails();
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
  const bool quiet = ReceiveFrames(/*look=*/CanReceive());
  if (down()) return;
  // Sending goes on when messages have arrived; only receiving waits until the agent has seen them.
  SendRails();
  if (up() && quiet) ReceiveRails();
  passed_over_ = quiet ? 0 : passed_over_ + 1;
  ++turn_;
}

bool TcpEndpoint::CanReceive() const {
  for (uint32_t i = 0; i < rails(); ++i) {
    if (AtHome(i) && rails_[i]->CanReceive()) return true;
  }
  return false;
}

bool TcpEndpoint::MayRead() {
  return std::exchange(landing_due_, false) || ReceiveFrames(/*look=*/true);
}

// What follows kReady waits until this side is up. A write waits until the agent has authorised the
// endpoint, and until it has seen the messages before the write.
bool TcpEndpoint::MustWait(ControlKind kind, bool after_message) const {
  if (greeting()) return ready_;
  return kind == ControlKind::kFrame && (after_message || !authorized_);
}

absl::Status TcpEndpoint::OnFrame(std::span<const std::byte> frame) {
  return connecting() ? OnStreamLost(frame) : OnInlineFrame(frame);
}

void TcpEndpoint::SendRails() {
  for (size_t i = 0; i < rails_.size() && !sink().full(); ++i) {
    const auto next = static_cast<uint32_t>((turn_ + i) % rails_.size());
    TcpRail& rail = *rails_[next];
    if (!AtHome(next) || !rail.CanSend()) continue;
    if (absl::Status sent = rail.Send(kSendTurnBytes); !sent.ok()) RailFailed(rail.index(), sent);
    if (down()) return;
  }
}

void TcpEndpoint::ReceiveRails() {
  DropHungUp();
  if (!authorized_) return;
  for (size_t i = 0; i < rails_.size() && up() && !sink().full(); ++i) {
    const auto next = static_cast<uint32_t>((turn_ + i) % rails_.size());
    TcpRail& rail = *rails_[next];
    // The agent must see a message before later data is written to memory.
    if (MessagesReported()) return;
    if (!AtHome(next) || !rail.CanReceive()) continue;
    if (absl::Status got = rail.Receive(kReceiveTurnBytes); !got.ok()) {
      RailFailed(rail.index(), got);
    }
  }
}

void TcpEndpoint::OnImmediate(uint32_t rail, uint32_t immediate) {
  sink().Emit(
      {.kind = EventKind::kImmediate, .endpoint = this, .rail = rail, .immediate = immediate});
}

std::optional<uint32_t> TcpEndpoint::ReleaseRegion(const net::Region* region) {
  std::optional<uint32_t> written;
  for (uint32_t i = 0; i < rails() && up(); ++i) {
    if (!rails_[i]->ReleaseRegion(region) && !written) written = i;
  }
  return written;
}

// The agent closes a region only once its peers have said that they write no more to it.
void TcpEndpoint::OnRegionWritten(uint32_t rail) {
  if (!up()) return;
  Fail(absl::FailedPreconditionError("a region was deregistered while the peer wrote to it"),
       absl::StrCat("data stream ", rail));
}

void TcpEndpoint::EndData(const absl::Status& why) {
  RecallAll();
  for (const auto& rail : rails_) rail->CancelOps(0, why);
}

size_t TcpEndpoint::DataDescriptors() const {
  return static_cast<size_t>(
      std::ranges::count_if(rails_, [](const auto& rail) { return rail->attached(); }));
}

std::vector<net::Fd> TcpEndpoint::ReleaseData() {
  std::vector<net::Fd> out;
  for (const auto& rail : rails_) out.push_back(rail->Release());
  return out;
}

}  // namespace kvxfer::tcp
