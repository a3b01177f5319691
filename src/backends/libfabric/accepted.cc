// LibfabricAcceptedEndpoint: the peer's frames, received immediates, and fences.

#include "src/backends/libfabric/accepted.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/regions.h"
#include "src/core/base/strings.h"

namespace kvxfer::libfabric {
LibfabricAcceptedEndpoint::LibfabricAcceptedEndpoint(LibfabricBackend* backend, net::Fd control,
                                                     std::string from)
    : LibfabricEndpoint(backend, std::move(control), std::move(from)),
      rails_(backend->domains().size()) {}

void LibfabricAcceptedEndpoint::SayHello() {
  Tell(Hello{.domains = static_cast<uint8_t>(backend_->domains().size())});
}

EndpointInfo LibfabricAcceptedEndpoint::Describe() const {
  EndpointInfo out{.path = Name(), .rails = std::vector<RailInfo>(rails_.size())};
  for (const AcceptedRail& rail : rails_) {
    if (rail.end != nullptr) absl::StrAppend(&out.path, ", ", rail.end->domain().Name());
  }
  return out;
}

void LibfabricAcceptedEndpoint::Authorize() {
  // No endpoint exists before this, so the peer cannot write or read anything unauthorised.
  if (std::exchange(authorized_, true) || !up()) return;
  OnAuthorized();
  for (AcceptedRail& rail : rails_) {
    if (rail.offered) Make(*std::exchange(rail.offered, std::nullopt));
  }
}

Posted LibfabricAcceptedEndpoint::Post(const Op& op) {
  if (!up()) return false;
  Emit(MakeRefused(this, op, "libfabric"));
  return true;
}

absl::StatusOr<std::unique_ptr<RemoteKey>> LibfabricAcceptedEndpoint::Import(
    const RemoteRegion& region, std::string_view key) {
  absl::StatusOr<std::unique_ptr<LibfabricRemoteKey>> decoded =
      LibfabricRemoteKey::Decode(region, key);
  if (!decoded.ok()) return decoded.status();
  return std::unique_ptr<RemoteKey>(*std::move(decoded));
}

absl::Status LibfabricAcceptedEndpoint::OnDecoded(const Frame& frame) {
  if (const auto* offer = std::get_if<Offer>(&frame)) return OnOffer(*offer);
  if (const auto* quiet = std::get_if<Quiet>(&frame); quiet != nullptr && authorized_) {
    if (quiet_.size() == FenceBook::kMaxEarly) {
      return absl::ResourceExhaustedError("the peer stops transfers whose writes do not come");
    }
    quiet_.push_back(quiet->transfer);
    // The immediates that have arrived are reported before the answer.
    Look(kEverything);
    AnswerQuiet();
    return absl::OkStatus();
  }
  if (std::holds_alternative<Busy>(frame) && authorized_) {
    busy_ = true;
    return absl::OkStatus();
  }
  if (std::holds_alternative<Idle>(frame)) {
    busy_ = false;
    return absl::OkStatus();
  }
  // The rail that the frame is about; null: there is none, it is closed, or the frame is about an
  // earlier life.
  const auto rail_of = [&](const auto* of) -> AcceptedRail* {
    if (of == nullptr || of->rail >= rails_.size()) return nullptr;
    AcceptedRail& rail = rails_[of->rail];
    return rail.life == of->life && rail.end != nullptr ? &rail : nullptr;
  };
  if (const auto* count = std::get_if<Count>(&frame)) {
    if (AcceptedRail* const rail = rail_of(count)) rail->due = count->count;
    return absl::OkStatus();
  }
  if (const auto* immediate = std::get_if<Immediate>(&frame)) {
    if (rail_of(immediate) != nullptr) OnImmediate(immediate->rail, immediate->immediate);
    return absl::OkStatus();
  }
  if (const auto* lost = std::get_if<RailLost>(&frame)) {
    // The peer's failed ops may still write; closing this end stops them.
    if (rail_of(lost) != nullptr) Kill(lost->rail);
    AnswerQuiet();
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("the peer sent a libfabric frame that has no place here");
}

absl::Status LibfabricAcceptedEndpoint::OnOffer(const Offer& offer) {
  if (offer.rail >= rails_.size() || offer.life <= rails_[offer.rail].life) {
    return absl::InvalidArgumentError(
        "the peer offered an endpoint of no rail, or of an earlier life");
  }
  if (authorized_) {
    Make(offer);
    // Opening a rail closes its earlier life, whose missing immediates are then no longer waited
    // for.
    AnswerQuiet();
  } else {
    rails_[offer.rail].offered = offer;
  }
  return absl::OkStatus();
}

void LibfabricAcceptedEndpoint::Make(const Offer& offer) {
  // The peer has given up the earlier life.
  Kill(offer.rail);
  AcceptedRail& rail = rails_[offer.rail];
  rail.life = offer.life;
  rail.got = rail.reported = rail.due = kFirstCount;
  rail.probed = false;
  Answer answer{.rail = offer.rail, .life = offer.life};
  if (const absl::Status status = TryMake(offer); status.ok()) {
    const End& end = *rail.end;
    answer.address = end.address();
    answer.sink = end.domain().sink();
    answer.sink_key = end.domain().sink_key();
  } else {
    rail.end.reset();
    answer.error = std::string(status.message());
  }
  Tell(answer);
}

absl::Status LibfabricAcceptedEndpoint::TryMake(const Offer& offer) {
  absl::StatusOr<std::unique_ptr<End>> end = End::Open(backend_->domains()[offer.rail].get());
  if (!end.ok()) return end.status();
  rails_[offer.rail].end = *std::move(end);
  return rails_[offer.rail].end->SetPeer(offer.address);
}

void LibfabricAcceptedEndpoint::Kill(uint32_t index) {
  if (rails_[index].end == nullptr) return;
  // Immediates of writes that are complete must not be lost with the queue.
  LookAt(index, kEverything).IgnoreError();
  rails_[index].end.reset();
}

void LibfabricAcceptedEndpoint::Lose(uint32_t index, const absl::Status& why) {
  if (rails_[index].end == nullptr) return;
  Kill(index);
  Tell(net::LostRail(index, rails_[index].life, ToStd(why.message())));
}

void LibfabricAcceptedEndpoint::PollData() {
  Look(kPollBatch);
  AnswerQuiet();
}

void LibfabricAcceptedEndpoint::Look(size_t most) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (absl::Status status = LookAt(i, most); !status.ok()) Lose(i, status);
  }
}

absl::Status LibfabricAcceptedEndpoint::LookAt(uint32_t index, size_t most) {
  AcceptedRail& rail = rails_[index];
  if (rail.end == nullptr) return absl::OkStatus();
  std::vector<Done> done;
  absl::Status status = rail.end->Poll(most, done);
  for (const Done& one : done) {
    if (!one.immediate) continue;
    ++rail.got;
    if (std::exchange(rail.probed, true)) {
      OnImmediate(index, *one.immediate);
    } else {
      // The peer's probe waits until this immediate is reported.
      rail.due = rail.got;
    }
  }
  // Reports at once when everything announced has arrived, because the peer may be waiting for
  // that, and else every kHeardEvery.
  const bool all = rail.got == rail.due && rail.got != rail.reported;
  if (all || rail.got - rail.reported >= kHeardEvery) {
    rail.reported = rail.got;
    Tell(Count{.rail = static_cast<uint8_t>(index), .life = rail.life, .count = rail.got});
  }
  return status;
}

void LibfabricAcceptedEndpoint::OnImmediate(uint32_t index, uint32_t immediate) {
  // Marks GPU memory for a flush, which comes before the agent sees the event, see
  // LibfabricBackend::Poll.
  backend_->arrival_flusher().OnImmediate();
  Emit({.kind = EventKind::kImmediate, .endpoint = this, .rail = index, .immediate = immediate});
}

bool LibfabricAcceptedEndpoint::missing() const {
  return std::ranges::any_of(rails_, [](const AcceptedRail& rail) {
    return rail.end != nullptr && static_cast<int32_t>(rail.due - rail.got) > 0;
  });
}

// Also true while the peer is idle: a write may complete at its initiator before its immediate is
// in the queue here.
bool LibfabricAcceptedEndpoint::busy() const { return up() && (busy_ || missing()); }

bool LibfabricAcceptedEndpoint::unread() const {
  return std::ranges::any_of(
      rails_, [](const AcceptedRail& rail) { return rail.end != nullptr && rail.end->unread(); });
}

void LibfabricAcceptedEndpoint::Fence(FenceScope scope) {
  if (!up()) return;
  if (scope.rail != FenceScope::kEveryRail) return FenceRail(scope.rail);
  if (scope.transfer != FenceScope::kEveryTransfer) FenceTransfer(scope.transfer);
}

void LibfabricAcceptedEndpoint::FenceTransfer(uint64_t transfer) {
  AnswerFences(transfer, fences_.Ask(transfer, Now()));
  Reschedule();
}

void LibfabricAcceptedEndpoint::FenceRail(uint32_t rail) {
  if (rail >= rails_.size()) return;
  Kill(rail);
  Emit(MakeFenced(this, {.rail = rail}));
  AnswerQuiet();
}

// The initiator has seen every op of the transfer complete, and a write completes once its bytes
// are visible here. Ops that failed took their rails with them. Of the others all immediates have
// to arrive first; the initiator sends no later ones ahead of them
// (LibfabricDialledEndpoint::DialledRail::held_until).
void LibfabricAcceptedEndpoint::AnswerQuiet() {
  if (quiet_.empty() || missing()) return;
  for (const uint64_t transfer : std::exchange(quiet_, {})) {
    AnswerFences(transfer, fences_.OnQuiet(transfer));
  }
}

void LibfabricAcceptedEndpoint::AnswerFences(uint64_t transfer, uint32_t count) {
  for (; count > 0; --count) {
    Emit(MakeFenced(this, {.transfer = transfer}));
  }
}

void LibfabricAcceptedEndpoint::OnDataDeadline(Time now) {
  if (!fences_.late(now)) return;
  const absl::Status why = absl::DeadlineExceededError(
      "a transfer had to be stopped, and its initiator did not say that it was");
  // Closing the rails stops everything that the peer has in flight.
  for (uint32_t i = 0; i < rails_.size(); ++i) Lose(i, why);
  AnswerQuiet();
  // Without endpoints the transfers that are not late are quiet too.
  for (const uint64_t transfer : fences_.unanswered()) {
    AnswerFences(transfer, fences_.OnQuiet(transfer));
  }
}

void LibfabricAcceptedEndpoint::EndData(const absl::Status&) {
  for (AcceptedRail& rail : rails_) rail.end.reset();
  fences_.Clear();
  quiet_.clear();
}

}  // namespace kvxfer::libfabric
