#include "src/backends/shm/accepted.h"

#include <sys/prctl.h>

#include <algorithm>
#include <utility>

#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::shm {

ShmAcceptedEndpoint::ShmAcceptedEndpoint(Hub* hub, UniqueFd socket, uint32_t pid)
    : ShmEndpoint(hub, std::move(socket)), dialler_pid_(pid) {
  max_message_ = kMaxFirstMessageBytes;
}

absl::StatusOr<std::unique_ptr<ShmAcceptedEndpoint>> ShmAcceptedEndpoint::Begin(Hub* hub,
                                                                                UniqueFd socket,
                                                                                uint32_t pid) {
  std::unique_ptr<ShmAcceptedEndpoint> endpoint(
      new ShmAcceptedEndpoint(hub, std::move(socket), pid));
  if (absl::Status watched = endpoint->WatchSocket(); !watched.ok()) return watched;
  return endpoint;
}

ShmAcceptedEndpoint::~ShmAcceptedEndpoint() { LeaveAuthorised(); }

EndpointInfo ShmAcceptedEndpoint::Describe() const {
  return OneRail(absl::StrCat("process ", dialler_pid_, ", which copies into this one's memory"));
}

absl::Status ShmAcceptedEndpoint::OnFrame(Channel::Frame& frame) {
  if (frame.type == FrameType::kDial && !promoted_) {
    if (const auto dial = wire::TryDecode<DialBody>(frame.body)) return OnDial(*dial);
  }
  if (frame.type == FrameType::kRing && promoted_) return TakeRings(frame);
  if (frame.type == FrameType::kHold && authorised_ && !held_) {
    held_ = true;
    return absl::OkStatus();
  }
  if (frame.type == FrameType::kQuiet && held_) {
    held_ = false;
    return absl::OkStatus();
  }
  return absl::InternalError(
      absl::StrCat("shm: process ", dialler_pid_, " sent a frame out of place"));
}

absl::Status ShmAcceptedEndpoint::OnDial(const DialBody& dial) {
  absl::Status refused;
  if (dial.version != kWireVersion) {
    refused = absl::FailedPreconditionError(absl::StrCat("it speaks version ", kWireVersion,
                                                         " of shm, not ", dial.version,
                                                         "; use the same kvxfer"));
  } else if (dial.pid != dialler_pid_) {
    refused = absl::PermissionDeniedError(
        absl::StrCat("the dialler calls itself process ", dial.pid, " but is ", dialler_pid_,
                     " there: the two are in different pid namespaces"));
  } else {
    auto peer = PeerProcess::Open(hub_->host, dial.pid, dial.start_time);
    refused = peer.ok() ? WatchPeer(*std::move(peer)) : peer.status();
  }
  if (!refused.ok()) {
    SendFrame(FrameType::kBye, ForPeer(ToStd(refused.message())));
    return refused;
  }
  promoted_ = true;
  auto self = std::find_if(hub_->embryos.begin(), hub_->embryos.end(),
                           [this](const auto& embryo) { return embryo.get() == this; });
  hub_->events.Push(MakeAccepted(std::move(*self)));
  hub_->embryos.erase(self);
  return absl::OkStatus();
}

void ShmAcceptedEndpoint::Authorize() {
  if (!promoted_ || authorised_ || closing_ || down_) return;
  // To the others; to this one they go below, behind the offer.
  hub_->SendNewFiles();
  authorised_ = true;
  max_message_ = kMaxMessageBytes;
  hub_->authorised.push_back(this);
  probe_[0] = RandomNonZero64();
  OfferBody offer;
  offer.probe_address = reinterpret_cast<uintptr_t>(probe_.data());
  offer.probe_value = probe_[0];
  offer.mapped_value = hub_->probe_value;
  offer.dumpable = static_cast<uint32_t>(prctl(PR_GET_DUMPABLE));
  SendFrame(FrameType::kOffer, wire::Encode(offer), hub_->probe_file.get());
  for (const SharedFiles::File* file : hub_->files.Sent()) SendFile(*file);
}

void ShmAcceptedEndpoint::SendFile(const SharedFiles::File& file) {
  const FileBody body{.id = file.id};
  SendFrame(FrameType::kFile, wire::Encode(body), file.fd.get());
}

void ShmAcceptedEndpoint::SendForget(uint64_t id) {
  // Keeps the queue bounded by the number of live files.
  if (channel_.DropQueuedFile(id)) return;
  const ForgetBody body{.id = id};
  SendFrame(FrameType::kForget, wire::Encode(body));
}

Posted ShmAcceptedEndpoint::Post(const Op& op) {
  if (down_) return false;
  hub_->events.Push(MakeRefused(this, op, "shm"));
  return true;
}

void ShmAcceptedEndpoint::Fence(FenceScope scope) {
  if (down_) return;
  // The initiator was fenced first and copies with its own CPU, so nothing is under way.
  hub_->events.Push(MakeFenced(this, scope));
}

absl::StatusOr<std::unique_ptr<RemoteKey>> ShmAcceptedEndpoint::Import(const RemoteRegion&,
                                                                       std::string_view) {
  return absl::FailedPreconditionError(
      "shm: only the side that connected may use regions of the other");
}

void ShmAcceptedEndpoint::Shutdown(absl::Status why) {
  if (down_ || closing_) return;
  SendFrame(FrameType::kBye, ForPeer(ToStd(why.message())));
  closing_ = true;
  why_ = std::move(why);
  LeaveAuthorised();
  if (!channel_.queued()) OnFlushed();
}

void ShmAcceptedEndpoint::OnFlushed() {
  if (!closing_) return;
  channel_.HalfClose();
  // Without authorisation the peer has nothing through which it could write.
  if (!authorised_) GoDown(why_);
}

void ShmAcceptedEndpoint::OnEnd(const absl::Status& cause) {
  LeaveAuthorised();
  if (!promoted_) {
    failed_embryo_ = true;
    return;
  }
  const absl::Status why = closing_ ? why_ : cause;
  if (authorised_ && cause.code() == absl::StatusCode::kInternal && !peer_.Exited()) {
    // A peer that breaks the rules may still be copying. Only the end of its socket proves that it
    // is not.
    Shutdown(why);
    return;
  }
  if (held_ && !peer_.Exited()) {
    // OnExit follows.
    closing_ = true;
    why_ = why;
    StopReceiving();
    return;
  }
  GoDown(why);
}

void ShmAcceptedEndpoint::LeaveAuthorised() { std::erase(hub_->authorised, this); }

}  // namespace kvxfer::shm
