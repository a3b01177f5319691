// Rail: how it comes up: offer, answer, and a probe, which proves that bytes arrive at the intended
// peer.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/rail.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/transport/rail_backoff.h"

namespace kvxfer::verbs {
namespace {

// The requests of a probe or of a flush; completion queue entries are reserved for them.
constexpr uint32_t kOwnRequests = 2;
// After this many failures of this side's own the rail counts as exhausted.
constexpr uint32_t kLocalFailures = 3;

// The time for one step: some round trips of the device's own time-out.
Duration AttemptTime(const VerbsOptions& options) {
  const Duration timeout = std::chrono::nanoseconds(4096) * (int64_t{1} << options.timeout);
  return std::clamp<Duration>(timeout * 8, std::chrono::seconds(2), std::chrono::seconds(20));
}

}  // namespace

Rail::Rail(DialledLink* link, uint32_t index, Pair pair)
    : link_(link), index_(index), ordered_(link->backend().ordered()), pair_(pair) {}

Rail::~Rail() { Destroy(absl::CancelledError("the link is gone"), IfRefused::kLeave); }

Device& Rail::device() const { return link_->local_device(pair_.local); }
const LocalPort& Rail::port() const { return link_->local_port(pair_.local); }

bool Rail::uses(const Device& device) const { return &this->device() == &device; }
bool Rail::uses(const Device& device, uint8_t port) const {
  return uses(device) && this->port().number == port;
}

std::string Rail::Path() const {
  return absl::StrCat(port().info.name, " → ", link_->remote_ports()[pair_.remote].name);
}

std::string Rail::Where() const {
  return absl::StrCat("verbs peer ", link_->PeerName(), ", rail ", index_, " (", Path(), ")");
}

absl::Status Rail::CheckLocalEnd() {
  if (device().broken()) return device().why_broken();
  if (absl::Status status = link_->RefreshPort(pair_.local); !status.ok()) return status;
  VerbsBackend& backend = link_->backend();
  if (absl::Status status = backend.CheckRegions(device()); !status.ok()) return status;
  if (!link_->scratch().registration->has(device().ordinal())) {
    return link_->scratch().registration->why_missing();
  }
  if (absl::Status status = link_->CheckKeys(link_->remote_ports()[pair_.remote].device);
      !status.ok()) {
    return status;
  }
  return backend.destroyer().CheckSpace(device());
}

void Rail::Attempt() {
  if (std::exchange(round_over_, false)) {
    bad_.clear();
    pair_ = link_->OtherPair(*this).value_or(pair_);
  }
  ++life_;
  state_ = State::kMaking;
  if (absl::Status status = CheckLocalEnd(); !status.ok()) {
    return AttemptFailed(std::move(status), device().broken());
  }
  SetUp(std::nullopt, State::kMaking);
}

// Each step has its own time limit, so that waiting behind other jobs does not count against this
// pair.
void Rail::SetUp(std::optional<QpAddress> to, State state) {
  state_ = state;
  VerbsBackend& backend = link_->backend();
  deadline_ = Now() + AttemptTime(backend.options());
  backend.TimersChanged();
  job_ = backend.setups().Start({.device = &device(),
                                 .port = port(),
                                 .depth = backend.queue_depth(),
                                 .pair = std::move(qp_),
                                 .to = std::move(to)},
                                link_, index_);
}

void Rail::OnSetUp(absl::Status status, std::unique_ptr<QueuePair> pair) {
  job_ = 0;
  qp_ = std::move(pair);
  if (!status.ok()) return AttemptFailed(std::move(status), state_ == State::kConnecting);
  if (state_ == State::kConnecting) return PostProbe();
  state_ = State::kOffered;
  number_ = qp_->number();
  deadline_ = Now() + AttemptTime(link_->backend().options());
  link_->Tell(Offer{.rail = static_cast<uint8_t>(index_),
                    .life = life_,
                    .port = static_cast<uint8_t>(pair_.remote),
                    .from = qp_->address()});
  link_->backend().TimersChanged();
}

void Rail::OnAnswer(const Answer& answer) {
  if (answer.life != life_ || state_ != State::kOffered) return;
  if (!answer.error.empty()) {
    return AttemptFailed(absl::UnavailableError(absl::StrCat("the peer: ", answer.error)), true);
  }
  scratch_ = answer.scratch;
  scratch_key_ = answer.scratch_key;
  remote_device_ = answer.at.port.device;
  if (remote_device_ >= kMaxDevices) {
    return AttemptFailed(absl::InvalidArgumentError("the peer: a device of no number"), true);
  }
  SetUp(answer.at, State::kConnecting);
}

// Takes a slot, which identifies its requests, and reserves entries for the rail's own requests.
absl::Status Rail::Prepare() {
  VerbsBackend& backend = link_->backend();
  if (device().space() < kOwnRequests) {
    return absl::ResourceExhaustedError(
        absl::StrCat(device().name(), ": its completion queue is full"));
  }
  uint64_t first = 0;
  slot_ = backend.TakeSlot(this, first);
  if (!slot_) return absl::ResourceExhaustedError("verbs: there are too many rails");
  device().TakeSpace(kOwnRequests);
  reserved_ = kOwnRequests;
  queue_.Reset(backend.queue_depth(), first);
  bytes_ = 0;
  return absl::OkStatus();
}

// Writes a random word and reads it back. The read also shows that the write has been executed.
void Rail::PostProbe() {
  if (absl::Status status = Prepare(); !status.ok()) {
    return AttemptFailed(std::move(status), false);
  }
  state_ = State::kProbing;
  deadline_ = Now() + AttemptTime(link_->backend().options());
  link_->backend().TimersChanged();
  nonce_ = RandomNonZero64();
  StoreScratch(link_->scratch().at + index_ * 8, nonce_);
  StoreScratch(link_->scratch().at + Scratch::kReadOffset + index_ * 8, 0);
  probed_at_ = Now();
  ibv_send_wr& write = Chain();
  FillWord(write, false);
  // Unordered: the read is posted once the write has completed.
  if (!ordered_) return Internal(Purpose::kProbeWrite, write, 1);
  ibv_send_wr& read = Chain();
  FillWord(read, true);
  Internal(Purpose::kProbe, read, 2);
}

void Rail::PostProbeRead() {
  ibv_send_wr& read = Chain();
  FillWord(read, true);
  Internal(Purpose::kProbe, read, 1);
}

void Rail::ProbeDone(const absl::Status& status) {
  if (state_ != State::kProbing) return;
  if (!status.ok()) return AttemptFailed(status, true);
  round_trip_ = Now() - probed_at_;
  if (LoadScratch(link_->scratch().at + Scratch::kReadOffset + index_ * 8) != nonce_) {
    return AttemptFailed(
        absl::DataLossError(absl::StrCat(Where(), ": a probe came back as something else")), true);
  }
  link_->Tell(Probe{.rail = static_cast<uint8_t>(index_), .life = life_, .nonce = nonce_});
}

void Rail::OnProbed(const Probed& probed) {
  if (probed.life != life_ || state_ != State::kProbing) return;
  if (!probed.found) {
    return AttemptFailed(absl::DataLossError(absl::StrCat(
                             Where(), ": a probe did not arrive at the peer that was meant")),
                         true);
  }
  state_ = State::kUp;
  failed_ = 0;
  was_up_ = true;
  failures_ = 0;
  bad_.clear();
  why_ = absl::OkStatus();
  deadline_.reset();
  link_->backend().TimersChanged();
  link_->RailUp(index_);
}

void Rail::AttemptFailed(absl::Status why, bool bad_pair) {
  if (state_ >= State::kOffered) link_->TellLost(index_, life_, why);
  // The state is left first, so that the probe's own end has no effect.
  state_ = State::kWaiting;
  Destroy(why, IfRefused::kLeave);
  why_ = std::move(why);
  link_->backend().TimersChanged();
  if (bad_pair && !was_up_ && NextPair()) {
    deadline_ = Now();
    return;
  }
  // A failure of this side may pass, unless the local port is down.
  exhausted_ = exhausted_ || bad_pair || !port().active || failures_ >= kLocalFailures;
  // What can change earlier is reported: a port at either end that comes up.
  deadline_ = Now() + RailBackoff(failures_++, was_up_);
  link_->OnAttemptFailed();
}

// Each pair is tried once; when all have been, they are tried again after a pause.
bool Rail::NextPair() {
  bad_.push_back(pair_);
  const std::optional<Pair> other = link_->OtherPair(*this);
  round_over_ = !other;
  if (other) pair_ = *other;
  return other.has_value();
}

void Rail::Reopen() {
  if (state_ != State::kDown) return;
  state_ = State::kWaiting;
  failures_ = 0;
  deadline_ = Now() + RailBackoff(0, was_up_);
  link_->backend().TimersChanged();
}

void Rail::OnPortUp() {
  if (state_ != State::kWaiting) return;
  deadline_ = Now();
  link_->backend().TimersChanged();
}

void Rail::OnDeadline(Time now) {
  if (!deadline_ || *deadline_ > now) return;
  deadline_.reset();
  switch (state_) {
    case State::kWaiting:
      return Attempt();
    case State::kMaking:
      return AttemptFailed(absl::DeadlineExceededError(
                               absl::StrCat(Where(), ": its queue pair was not made in time")),
                           false);
    case State::kConnecting:
      return AttemptFailed(absl::UnavailableError(
                               absl::StrCat(Where(), ": the peer's address was not found in time")),
                           true);
    case State::kOffered:
      return AttemptFailed(absl::UnavailableError(absl::StrCat(
                               Where(), ": the peer did not answer the offer of a queue pair")),
                           true);
    case State::kProbing:
      return AttemptFailed(
          absl::UnavailableError(absl::StrCat(Where(), ": a probe did not arrive in time")), true);
    case State::kUp:
      if (queue_.empty()) return;
      if (progress_ != progress_seen_) return WatchStall(now);
      return Fail(absl::UnavailableError(absl::StrCat(
                      Where(), ": work requests neither completed nor failed within ",
                      link_->backend().options().stall_timeout / std::chrono::milliseconds(1),
                      " ms (KVXFER_VERBS_STALL_TIMEOUT_MS)")),
                  true);
    case State::kDraining:
      return OnDrainDeadline(now);
    case State::kDown:
      return;
  }
}

}  // namespace kvxfer::verbs
