// VerbsRail: how it comes up: offer, answer, and a probe, which proves that bytes arrive at the
// intended peer.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"
#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/rail.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

// The requests of a probe or of a flush; completion queue entries are reserved for them.
constexpr uint32_t kOwnRequests = 2;

// The time for one step: some round trips of the device's own time-out.
Duration AttemptTime(const VerbsOptions& options) {
  const Duration timeout = std::chrono::nanoseconds(4096) * (int64_t{1} << options.timeout);
  return std::clamp<Duration>(timeout * 8, std::chrono::seconds(2), std::chrono::seconds(20));
}

}  // namespace

VerbsRail::VerbsRail(VerbsDialledEndpoint* endpoint, uint32_t index, Pair pair)
    : endpoint_(endpoint),
      index_(index),
      ordered_(endpoint->backend().ordered()),
      life_(pair, [this](std::span<const Pair> bad) { return endpoint_->OtherPair(index_, bad); }) {
}

VerbsRail::~VerbsRail() {
  Destroy(absl::CancelledError("the connection is gone"), IfRefused::kLeave);
}

Device& VerbsRail::device() const { return endpoint_->local_device(pair().local); }
const LocalPort& VerbsRail::port() const { return endpoint_->local_port(pair().local); }

bool VerbsRail::uses(const Device& device) const { return &this->device() == &device; }
bool VerbsRail::uses(const Device& device, uint8_t port) const {
  return uses(device) && this->port().number == port;
}

std::string VerbsRail::Path() const {
  return absl::StrCat(port().info.name, " → ", endpoint_->remote_ports()[pair().remote].name);
}

std::string VerbsRail::Where() const {
  return absl::StrCat("verbs peer ", endpoint_->PeerName(), ", rail ", index_, " (", Path(), ")");
}

absl::Status VerbsRail::CheckLocalEnd() {
  if (device().broken()) return device().why_broken();
  if (absl::Status status = endpoint_->RefreshPort(pair().local); !status.ok()) return status;
  VerbsBackend& backend = endpoint_->backend();
  if (absl::Status status = backend.CheckRegions(device()); !status.ok()) return status;
  if (!endpoint_->scratch().registration->has(device().ordinal())) {
    return endpoint_->scratch().registration->why_missing();
  }
  if (absl::Status status = endpoint_->CheckKeys(endpoint_->remote_ports()[pair().remote].device);
      !status.ok()) {
    return status;
  }
  return backend.destroyer().CheckSpace(device());
}

void VerbsRail::Attempt() {
  life_.Attempt();
  if (absl::Status status = CheckLocalEnd(); !status.ok()) {
    return AttemptFailed(std::move(status), device().broken());
  }
  SetUp(std::nullopt, RailLife::State::kMaking);
}

// Each step has its own time limit, so that waiting behind other jobs does not count against this
// pair.
void VerbsRail::BeginStep(RailLife::State state) {
  life_.Step(state, Now(), AttemptTime(endpoint_->backend().options()));
  endpoint_->Reschedule();
}

void VerbsRail::SetUp(std::optional<QpAddress> to, RailLife::State state) {
  BeginStep(state);
  VerbsBackend& backend = endpoint_->backend();
  job_ = backend.setups().Start({.device = &device(),
                                 .port = port(),
                                 .depths = {.sends = backend.queue_depth()},
                                 .pair = std::move(qp_),
                                 .to = std::move(to)},
                                endpoint_, index_);
}

void VerbsRail::OnSetUp(absl::Status status, std::unique_ptr<QueuePair> pair) {
  job_ = 0;
  qp_ = std::move(pair);
  const bool connecting = life_.state() == RailLife::State::kConnecting;
  if (!status.ok()) return AttemptFailed(std::move(status), connecting);
  if (connecting) return PostProbe();
  BeginStep(RailLife::State::kOffered);
  number_ = qp_->number();
  endpoint_->Tell(Offer{.rail = static_cast<uint8_t>(index_),
                        .life = life_.number(),
                        .port = static_cast<uint8_t>(life_.pair().remote),
                        .from = qp_->address()});
}

void VerbsRail::OnAnswer(const Answer& answer) {
  if (!life_.Is(RailLife::State::kOffered, answer.life)) return;
  if (!answer.error.empty()) {
    return AttemptFailed(absl::UnavailableError(absl::StrCat("the peer: ", answer.error)), true);
  }
  scratch_ = answer.scratch;
  scratch_key_ = answer.scratch_key;
  remote_device_ = answer.at.port.device;
  if (remote_device_ >= kMaxDevices) {
    return AttemptFailed(absl::InvalidArgumentError("the peer: a device of no number"), true);
  }
  SetUp(answer.at, RailLife::State::kConnecting);
}

// Takes a slot, which identifies its requests, and reserves entries for the rail's own requests.
absl::Status VerbsRail::Prepare() {
  VerbsBackend& backend = endpoint_->backend();
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
void VerbsRail::PostProbe() {
  if (absl::Status status = Prepare(); !status.ok()) {
    return AttemptFailed(std::move(status), false);
  }
  BeginStep(RailLife::State::kProbing);
  nonce_ = RandomNonZero64();
  StoreScratch(endpoint_->scratch().at + index_ * 8, nonce_);
  StoreScratch(endpoint_->scratch().at + Scratch::kReadOffset + index_ * 8, 0);
  BuildWord(0, false);
  // Unordered: the read is posted once the write has completed.
  if (!ordered_) return SubmitOwn(Purpose::kProbeWrite, 1);
  BuildWord(1, true);
  SubmitOwn(Purpose::kProbe, 2);
}

void VerbsRail::PostProbeRead() {
  BuildWord(0, true);
  SubmitOwn(Purpose::kProbe, 1);
}

void VerbsRail::ProbeDone(const absl::Status& status) {
  if (!life_.probing()) return;
  if (!status.ok()) return AttemptFailed(status, true);
  life_.Answered(Now());
  if (LoadScratch(endpoint_->scratch().at + Scratch::kReadOffset + index_ * 8) != nonce_) {
    return AttemptFailed(
        absl::DataLossError(absl::StrCat(Where(), ": a probe came back as something else")), true);
  }
  endpoint_->Tell(
      Probe{.rail = static_cast<uint8_t>(index_), .life = life_.number(), .nonce = nonce_});
}

void VerbsRail::OnProbed(const Probed& probed) {
  if (!life_.Is(RailLife::State::kProbing, probed.life)) return;
  if (!probed.found) {
    return AttemptFailed(absl::DataLossError(absl::StrCat(
                             Where(), ": a probe did not arrive at the peer that was meant")),
                         true);
  }
  life_.Up();
  failed_ = 0;
  endpoint_->Reschedule();
  endpoint_->RailUp(index_);
}

void VerbsRail::AttemptFailed(absl::Status why, bool bad_pair) {
  if (life_.state() >= RailLife::State::kOffered) TellLost(why);
  // The state is left first, so that the probe's own end has no effect.
  life_.End(why);
  Destroy(why, IfRefused::kLeave);
  // A failure of this side may pass, unless the local port is down. What can change before the next
  // attempt is reported: a port at either end that comes up.
  const RailLife::Blame blame = bad_pair        ? RailLife::Blame::kPair
                                : port().active ? RailLife::Blame::kPassing
                                                : RailLife::Blame::kThisHost;
  const bool at_once = life_.Retry(Now(), blame);
  endpoint_->Reschedule();
  if (!at_once) endpoint_->OnAttemptFailed();
}

void VerbsRail::Reopen() {
  if (life_.Reopen(Now())) endpoint_->Reschedule();
}

void VerbsRail::OnPortUp() {
  life_.Hurry(Now());
  endpoint_->Reschedule();
}

void VerbsRail::OnDeadline(Time now) {
  using State = RailLife::State;
  if (!life_.Due(now)) return;
  const auto late = [this](const char* what, bool bad_pair) {
    AttemptFailed(absl::UnavailableError(absl::StrCat(Where(), ": ", what)), bad_pair);
  };
  switch (life_.state()) {
    case State::kWaiting:
      return Attempt();
    case State::kMaking:
      return late("its queue pair was not made in time", false);
    case State::kOffered:
      return late("the peer did not answer the offer of a queue pair", true);
    case State::kConnecting:
      return late("the peer's address was not found in time", true);
    case State::kProbing:
      return late("a probe did not arrive in time", true);
    case State::kUp:
      if (queue_.empty()) return;
      if (progress_ != progress_seen_) return WatchStall(now);
      return Fail(absl::UnavailableError(absl::StrCat(
                      Where(), ": work requests neither completed nor failed within ",
                      endpoint_->backend().options().stall_timeout / std::chrono::milliseconds(1),
                      " ms (KVXFER_VERBS_STALL_TIMEOUT_MS)")),
                  true);
    case State::kDraining:
      return OnDrainDeadline(now);
    case State::kDown:
      return;
  }
}

}  // namespace kvxfer::verbs
