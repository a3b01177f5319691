// How a rail comes to be: offer, answer, and the probe that shows that bytes arrive at the peer
// that was meant.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/rail.h"
#include "src/core/random.h"
#include "src/core/strings.h"

namespace kvxfer::verbs {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(20);
constexpr Duration kMaxBackoff = std::chrono::milliseconds(500);
// Of a pair that never answered.
constexpr Duration kHopelessBackoff = std::chrono::seconds(5);

// One attempt: some round trips of the device's own time-out.
Duration AttemptTime(const VerbsOptions& options) {
  const Duration timeout = std::chrono::nanoseconds(4096) * (int64_t{1} << options.timeout);
  return std::clamp<Duration>(timeout * 8, std::chrono::seconds(2), std::chrono::seconds(20));
}

}  // namespace

Rail::Rail(DialledLink* link, uint32_t index, Pair pair)
    : link_(link), index_(index), pair_(pair) {}

Rail::~Rail() { Destroy(absl::CancelledError("the link is gone")); }

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

void Rail::Attempt() {
  deadline_.reset();
  state_ = State::kOffered;
  ++life_;
  if (device().broken()) return AttemptFailed(device().why_broken(), true);
  absl::Status status = link_->RefreshPort(pair_.local);
  if (status.ok() && !port().active) {
    status = absl::UnavailableError(absl::StrCat(port().info.name, ": the port is down"));
  }
  if (!status.ok()) return AttemptFailed(status, false);
  if (device().room() < 2) {
    return AttemptFailed(absl::ResourceExhaustedError(
                             absl::StrCat(device().name(), ": its completion queue is full")),
                         false);
  }
  const VerbsOptions& options = link_->backend().options().verbs;
  absl::StatusOr<std::unique_ptr<QueuePair>> made =
      QueuePair::Create(&device(), port(), link_->backend().queue_depth(), options);
  if (!made.ok()) return AttemptFailed(made.status(), false);
  qp_ = *std::move(made);
  device().TakeRoom(2);
  uint64_t first = 0;
  slot_ = link_->backend().TakeSlot(this, first);
  queue_.Reset(link_->backend().queue_depth(), first);
  bytes_ = 0;
  deadline_ = Now() + AttemptTime(options);
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
  if (absl::Status status = qp_->Connect(answer.at, true); !status.ok()) {
    return AttemptFailed(status, true);
  }
  scratch_ = answer.scratch;
  scratch_key_ = answer.scratch_key;
  remote_device_ = answer.at.port.device;
  if (remote_device_ >= kMaxDevices) {
    return AttemptFailed(absl::InvalidArgumentError("the peer: a device of no number"), true);
  }
  PostProbe();
}

// A random word there and back: the read also shows that the write is behind it.
void Rail::PostProbe() {
  state_ = State::kProbing;
  nonce_ = RandomNonZero64();
  StoreScratch(link_->scratch().at + index_ * 8, nonce_);
  StoreScratch(link_->scratch().at + Scratch::kReadOffset + index_ * 8, 0);
  FillWord(Chain(), false);
  ibv_send_wr& read = Chain();
  FillWord(read, true);
  probed_at_ = Now();
  Internal(Purpose::kProbe, read, 2);
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
  was_up_ = true;
  failures_ = 0;
  bad_.clear();
  why_ = absl::OkStatus();
  deadline_.reset();
  link_->backend().TimersChanged();
  link_->RailUp(index_);
}

void Rail::AttemptFailed(absl::Status why, bool bad_pair) {
  if (qp_ != nullptr) link_->TellLost(index_, life_, why);
  // Out of kProbing, so that the probe's own end changes nothing.
  state_ = State::kWaiting;
  Destroy(why);
  why_ = std::move(why);
  if (bad_pair && !was_up_) {
    bad_.push_back(pair_);
    if (const std::optional<Pair> other = link_->OtherPair(*this)) {
      pair_ = *other;
      deadline_ = Now();
      link_->backend().TimersChanged();
      return;
    }
    exhausted_ = true;
  }
  const Duration wait = kFirstBackoff * (1 << std::min(failures_++, 10u));
  deadline_ = Now() + std::min(wait, settled() && !was_up_ ? kHopelessBackoff : kMaxBackoff);
  link_->backend().TimersChanged();
  link_->OnAttemptFailed();
}

void Rail::Reopen() {
  if (state_ != State::kDown) return;
  state_ = State::kWaiting;
  failures_ = 0;
  deadline_ = Now() + kFirstBackoff;
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
                      link_->backend().options().verbs.stall_timeout / std::chrono::milliseconds(1),
                      " ms (KVXFER_VERBS_STALL_TIMEOUT_MS)")),
                  true);
    case State::kDraining:
      return FinishDrain();
    case State::kDown:
      return;
  }
}

}  // namespace kvxfer::verbs
