#include "src/backends/libfabric/accepted.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/backend.h"
#include "src/backends/libfabric/regions.h"

namespace kvxfer::libfabric {
namespace {

// An initiator that does not say for so long that a fenced transfer is quiet loses its endpoints.
constexpr Duration kPatience = std::chrono::seconds(3);

}  // namespace

void AcceptedLink::SayHello() {
  Tell(Hello{.domains = static_cast<uint8_t>(backend_->domains().size())});
}

std::string AcceptedLink::Describe() const {
  std::string out = Name();
  for (const Rail& rail : rails_) {
    if (rail.end != nullptr) absl::StrAppend(&out, ", ", rail.end->domain().Name());
  }
  return out;
}

void AcceptedLink::Authorize() {
  if (std::exchange(authorized_, true) || !up()) return;
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].offered) Make(i);
  }
}

size_t AcceptedLink::Post(std::span<const Op> ops) {
  if (!up()) return 0;
  for (const Op& op : ops) {
    Say(EventKind::kCompletion, op.id,
        absl::FailedPreconditionError(
            "libfabric: ops are posted on the endpoint that connected; connect to the peer"),
        op.rail);
  }
  return ops.size();
}

absl::StatusOr<std::unique_ptr<RemoteKey>> AcceptedLink::Import(const RemoteRegion& region,
                                                                std::string_view key) {
  absl::StatusOr<std::unique_ptr<LibfabricRemoteKey>> decoded =
      LibfabricRemoteKey::Decode(region, key);
  if (!decoded.ok()) return decoded.status();
  return std::unique_ptr<RemoteKey>(*std::move(decoded));
}

absl::Status AcceptedLink::OnWord(const Frame& frame) {
  if (const auto* offer = std::get_if<Offer>(&frame)) return OnOffer(*offer);
  if (std::holds_alternative<Busy>(frame) && authorized_) {
    busy_ = true;
    return absl::OkStatus();
  }
  if (std::holds_alternative<Idle>(frame)) {
    Look(kEverything);
    busy_ = false;
    return absl::OkStatus();
  }
  if (const auto* quiet = std::get_if<Quiet>(&frame); quiet != nullptr) {
    AnswerFences(quiet->transfer, fences_.OnMarker(quiet->transfer, 0));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("the peer sent a libfabric frame that has no place here");
}

absl::Status AcceptedLink::OnOffer(const Offer& offer) {
  if (offer.rail >= backend_->domains().size() || rails_[offer.rail].offered) {
    return absl::InvalidArgumentError("the peer offered an endpoint of no rail, or twice");
  }
  rails_[offer.rail].offered = offer.address;
  rails_offered_ = std::max(rails_offered_, offer.rail + 1u);
  if (authorized_) Make(offer.rail);
  return absl::OkStatus();
}

void AcceptedLink::Make(uint32_t rail) {
  Answer answer{.rail = static_cast<uint8_t>(rail)};
  if (const absl::Status status = TryMake(rail); status.ok()) {
    const End& end = *rails_[rail].end;
    answer.address = end.address();
    answer.sink = end.domain().sink();
    answer.sink_key = end.domain().sink_key();
  } else {
    rails_[rail].end.reset();
    answer.error = std::string(status.message());
  }
  Tell(answer);
}

absl::Status AcceptedLink::TryMake(uint32_t rail) {
  absl::StatusOr<std::unique_ptr<End>> end = End::Open(backend_->domains()[rail].get());
  if (!end.ok()) return end.status();
  rails_[rail].end = *std::move(end);
  return rails_[rail].end->SetPeer(*rails_[rail].offered);
}

void AcceptedLink::Look(size_t most) {
  std::vector<Done> done;
  for (uint32_t i = 0; i < rails_offered_ && up(); ++i) {
    if (rails_[i].end == nullptr) continue;
    done.clear();
    const absl::Status status = rails_[i].end->Poll(most, done);
    for (const Done& one : done) {
      if (!one.immediate) continue;
      Emit({.kind = EventKind::kImmediate,
            .endpoint = this,
            .rail = i,
            .immediate = *one.immediate});
    }
    if (!status.ok()) Down(Annotate(status, Where()), true);
  }
}

bool AcceptedLink::unread() const {
  return std::ranges::any_of(
      rails_, [](const Rail& rail) { return rail.end != nullptr && rail.end->unread(); });
}

void AcceptedLink::Fence(uint64_t transfer) {
  if (!up() || transfer == 0) return;
  asked_.try_emplace(transfer, Now() + kPatience);
  AnswerFences(transfer, fences_.Ask(transfer));
  backend_->hub().TimersChanged();
}

// Its initiator has seen every op of it end, which a write does when it has landed: what is left of
// it is in the completion queues.
void AcceptedLink::AnswerFences(uint64_t transfer, uint32_t count) {
  if (count == 0) return;
  Look(kEverything);
  if (!up()) return;
  asked_.erase(transfer);
  for (; count > 0; --count) Say(EventKind::kFenced, transfer);
}

std::optional<Time> AcceptedLink::DataDeadline() const {
  std::optional<Time> next;
  for (const auto& [transfer, patience] : asked_) next = Earlier(next, patience);
  return next;
}

void AcceptedLink::OnDataDeadline(Time) {
  Down(absl::DeadlineExceededError(absl::StrCat(
           Where(), ": a transfer had to be stopped, and its initiator did not say that it was")),
       true);
}

void AcceptedLink::EndData(const absl::Status&) {
  for (Rail& rail : rails_) rail.end.reset();
  asked_.clear();
}

}  // namespace kvxfer::libfabric
