#include "src/backends/verbs/carrier.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/errors.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::verbs {
namespace {

// For all steps together. On RoCE the kernel may look for the peer's address for a second, behind
// other jobs.
constexpr Duration kMakingTime = std::chrono::seconds(20);

absl::Status NoPlace() {
  return absl::InvalidArgumentError("the peer sent a frame about a control pair that has no place");
}

}  // namespace

void Carrier::MoveTo(State next) {
  using enum State;
  struct Move {
    State from;
    State to;
  };
  // Besides these, each state goes to kStream.
  [[maybe_unused]] static constexpr std::array kMoves = {
      Move{kUnproved, kIdle},   Move{kIdle, kMaking},        Move{kMaking, kOffered},
      Move{kMaking, kAnswered}, Move{kOffered, kConnecting}, Move{kConnecting, kHalfUp},
      Move{kAnswered, kUp},     Move{kHalfUp, kUp},
  };
  [[maybe_unused]] const auto is = [&](const Move& move) {
    return move.from == state_ && move.to == next;
  };
  assert(next == kStream || std::ranges::any_of(kMoves, is));
  state_ = next;
  if (next == kUp || next == kStream) made_by_.reset();
}

Carrier::Carrier(VerbsBackend* backend, Owner* owner, Side side)
    : backend_(backend),
      owner_(owner),
      side_(side),
      state_(side == Side::kAccepts ? State::kUnproved : State::kIdle) {}

Carrier::~Carrier() {
  if (backend_ == nullptr) return;
  backend_->setups().Cancel(job_);
  backend_->destroyer().Destroy(std::move(made_));
  pair_.reset();
  backend_->destroyer().Forget(this);
}

void Carrier::Detach() {
  backend_->destroyer().Forget(this);
  backend_ = nullptr;
}

// --- making a pair -------------------------------------------------------------------------------

void Carrier::OnRailUp(const Pair& ports) {
  if (state_ != State::kIdle) return;
  peer_port_ = static_cast<uint8_t>(ports.remote);
  Make(ports.local, std::nullopt);
}

void Carrier::Authorize() {
  MoveTo(State::kIdle);
  if (offer_) Make(offer_->port, offer_->from);
}

absl::Status Carrier::Check(size_t port) const {
  if (absl::Status status = backend_->CheckCarrier(); !status.ok()) return status;
  if (port >= backend_->ports().size()) return absl::InvalidArgumentError("no such port");
  const VerbsBackend::PortRef& ref = backend_->ports()[port];
  if (ref.device->broken()) return ref.device->why_broken();
  if (absl::Status status = ref.device->Refresh(ref.index); !status.ok()) return status;
  return backend_->destroyer().CheckSpace(*ref.device);
}

void Carrier::Make(size_t port, std::optional<QpAddress> to) {
  if (absl::Status status = Check(port); !status.ok()) return Leave(status, true);
  const VerbsBackend::PortRef& ref = backend_->ports()[port];
  device_ = ref.device;
  local_ = ref.port();
  ports_ = local_.info.name;
  if (to) absl::StrAppend(&ports_, " → ", to->port.name);
  made_by_ = Now() + kMakingTime;
  owner_->OnCarrierDeadline();
  SetUp(State::kMaking, {.device = ref.device,
                         .port = ref.port(),
                         .depths = ControlPair::kDepths,
                         .to = std::move(to)});
}

void Carrier::SetUp(State state, SetupQueue::Job job) {
  MoveTo(state);
  job_ = backend_->setups().Start(std::move(job), this, 0);
}

void Carrier::OnSetUp(uint32_t, absl::Status status, std::unique_ptr<QueuePair> pair) {
  job_ = 0;
  made_ = std::move(pair);
  if (status.ok()) status = made_->device().why_broken();
  if (status.ok() && side_ == Side::kConnects && state_ == State::kMaking) {
    MoveTo(State::kOffered);
    return owner_->TellPeer(ControlOffer{.port = peer_port_, .from = made_->address()});
  }
  if (status.ok()) status = Open();
  if (!status.ok()) return Leave(status, true);
  if (side_ == Side::kConnects) return SayUp(State::kHalfUp);
  MoveTo(State::kAnswered);
  owner_->TellPeer(ControlAnswer{.at = pair_->address()});
}

absl::Status Carrier::Open() {
  ControlPair::Client* const client = this;
  pair_ = std::make_unique<ControlPair>(
      backend_, client, std::move(made_),
      absl::StrCat(owner_->PeerOfCarrier(), ", control pair (", ports_, ")"));
  return pair_->Open();
}

void Carrier::SayUp(State next) {
  owner_->TellPeer(ControlUp{});
  MoveTo(next);
  // What the peer has sent already may be taken now.
  owner_->OnCarrierWork();
}

// --- frames --------------------------------------------------------------------------------------

bool Carrier::Handles(const Blob& blob) {
  return std::holds_alternative<ControlOffer>(blob) ||
         std::holds_alternative<ControlAnswer>(blob) || std::holds_alternative<ControlUp>(blob) ||
         std::holds_alternative<ControlLost>(blob) || std::holds_alternative<ControlPart>(blob);
}

absl::Status Carrier::OnFrame(const Blob& blob) {
  if (const auto* offer = std::get_if<ControlOffer>(&blob)) return OnOffer(*offer);
  if (const auto* answer = std::get_if<ControlAnswer>(&blob)) return OnAnswer(*answer);
  if (std::holds_alternative<ControlUp>(blob)) return OnPeerUp();
  if (const auto* lost = std::get_if<ControlLost>(&blob)) {
    Leave(absl::UnavailableError(absl::StrCat("the peer: ", lost->why)), false);
    return absl::OkStatus();
  }
  const auto* part = std::get_if<ControlPart>(&blob);
  if (part == nullptr || pair_ == nullptr) return NoPlace();
  return pair_->TakePart(*part);
}

absl::Status Carrier::OnOffer(const ControlOffer& offer) {
  const bool first = state_ == State::kUnproved || state_ == State::kIdle;
  if (side_ != Side::kAccepts || !first || offer_) return NoPlace();
  offer_ = offer;
  if (state_ == State::kIdle) Make(offer.port, offer.from);
  return absl::OkStatus();
}

absl::Status Carrier::OnAnswer(const ControlAnswer& answer) {
  if (side_ != Side::kConnects) return NoPlace();
  // This side has given up meanwhile.
  if (ended()) return absl::OkStatus();
  if (state_ != State::kOffered) return NoPlace();
  absl::StrAppend(&ports_, " → ", answer.at.port.name);
  SetUp(State::kConnecting, {.device = device_,
                             .port = local_,
                             .depths = ControlPair::kDepths,
                             .pair = std::move(made_),
                             .to = answer.at});
  return absl::OkStatus();
}

absl::Status Carrier::OnPeerUp() {
  if (ended()) return absl::OkStatus();
  if (state_ == State::kAnswered) {
    SayUp(State::kUp);
  } else if (state_ == State::kHalfUp) {
    MoveTo(State::kUp);
    owner_->OnCarrierWork();
  } else {
    return NoPlace();
  }
  return absl::OkStatus();
}

// --- its turns and its end -----------------------------------------------------------------------

void Carrier::Work() {
  if (pair_ == nullptr || ended()) return;
  if (absl::Status status = pair_->Work(delivers()); !status.ok()) {
    return owner_->OnCarrierDown(status);
  }
  if (!pair_->failure().ok()) Leave(pair_->failure(), true);
}

bool Carrier::HasWork() const { return pair_ != nullptr && !ended() && pair_->HasWork(delivers()); }

std::optional<Time> Carrier::deadline() const {
  return pair_ == nullptr ? made_by_ : Earlier(made_by_, pair_->deadline());
}

void Carrier::OnDeadline(Time now) {
  if (made_by_ && *made_by_ <= now) {
    return Leave(absl::DeadlineExceededError(
                     absl::StrCat(ports_, ": the peer's end of the control pair did not come up")),
                 true);
  }
  if (pair_ != nullptr) pair_->OnDeadline(now);
}

void Carrier::OnPort(const Device& device, uint8_t port, ibv_event_type type) {
  if (ended() || device_ != &device || local_.number != port || type == IBV_EVENT_PORT_ACTIVE)
    return;
  Leave(absl::UnavailableError(absl::StrCat(ports_, ": ", ToAbsl(EventName(type)))), true);
}

void Carrier::OnQueuePair(const Device& device, uint32_t number, const absl::Status& why) {
  if (device_ != &device) return;
  const bool mine = (pair_ != nullptr && pair_->address().number == number) ||
                    (made_ != nullptr && made_->number() == number);
  if (mine) Leave(why, true);
}

void Carrier::OnBroken(const Device& device, const absl::Status& why) {
  if (device_ == &device) Leave(why, true);
}

void Carrier::Leave(const absl::Status& why, bool tell) {
  if (ended()) return;
  const ControlCarrier control = backend_->control();
  if (control == ControlCarrier::kRdma) {
    return owner_->OnCarrierDown(absl::Status(
        why.code(), absl::StrCat("`control` (KVXFER_CONTROL) is rdma, and no control pair works: ",
                                 why.message())));
  }
  if (control == ControlCarrier::kAuto) {
    Log(LogLevel::kInfo, "verbs: {}: messages go over the control stream: {}",
        owner_->PeerOfCarrier(), ToStd(why.message()));
  }
  why_ = why;
  if (tell) owner_->TellPeer(ControlLost{.why = ForPeer(ToStd(why.message()))});
  Close();
}

void Carrier::End() {
  if (!ended()) Close();
}

void Carrier::Close() {
  MoveTo(State::kStream);
  backend_->setups().Cancel(std::exchange(job_, 0));
  backend_->destroyer().Destroy(std::move(made_));
  if (pair_ == nullptr) return;
  for (ControlPart& part : pair_->TakeUndelivered()) owner_->TellPeer(std::move(part));
  pair_->Destroy(this);
}

void Carrier::OnDestroyed(uint32_t, Device&, uint32_t) {
  pair_->OnDestroyed();
  owner_->OnCarrierQuiet();
}

std::string Carrier::Path() const {
  if (has_pair()) return absl::StrCat("control by SEND (", ports_, ")");
  if (why_.ok() || backend_ == nullptr) return "control by TCP";
  return absl::StrCat("control by TCP (", why_.message(), ")");
}

}  // namespace kvxfer::verbs
