#include "src/transport/dialler.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/reason.h"
#include "src/core/base/strings.h"

namespace kvxfer::net {

Dialler::Dialler(std::string_view label, PeerAddress peer, Service service, uint32_t rails,
                 Duration timeout, ControlStream* control)
    : label_(label),
      peer_(std::move(peer)),
      service_(service),
      rails_(rails),
      timeout_(timeout),
      control_(control) {}

void Dialler::Start() { Dial(); }

void Dialler::Dial() {
  greeted_ = false;
  deadline_ = Now() + timeout_;
  // A failed attempt may leave a half-written preamble or half a welcome; TryNext has
  // restarted the stream.
  absl::StatusOr<Fd> fd = StartConnect(address());
  absl::Status status = fd.status();
  if (fd.ok()) status = control_->Attach(*std::move(fd));
  if (!status.ok()) TryNext(status);
}

void Dialler::TryNext(const absl::Status& why) {
  control_->Restart();
  const absl::Status status =
      Annotate(why, absl::StrCat(label_, " ", address().ToString(), ", control stream"));
  // The refusal of another agent is kept: if no candidate is the right one, it explains more than
  // the last connection error.
  if (absl::IsFailedPrecondition(why) && refused_.ok()) refused_ = status;
  // Without descriptors the other candidates would fail as well.
  if (absl::IsResourceExhausted(why)) return End(status);
  if (candidate_ + 1 == peer_.candidates.size()) return End(refused_.ok() ? status : refused_);
  ++candidate_;
  Dial();
}

void Dialler::End(absl::Status why) {
  state_ = State::kFailed;
  status_ = std::move(why);
  deadline_.reset();
}

void Dialler::Work() {
  if (state_ == State::kBusy && !greeted_ && control_->writable()) SendPreamble();
  if (state_ == State::kBusy && greeted_ && control_->readable()) ReceiveWelcome();
}

void Dialler::SendPreamble() {
  std::array<std::byte, kPreambleBytes> bytes;
  Encode(Preamble{.role = Role::kControl,
                  .rails = static_cast<uint8_t>(rails_),
                  .target = peer_.incarnation,
                  .service = service_},
         bytes);
  absl::StatusOr<bool> sent = control_->PushRaw(bytes);
  if (!sent.ok()) return TryNext(sent.status());
  greeted_ = *sent;
}

void Dialler::ReceiveWelcome() {
  absl::StatusOr<bool> got = control_->Fill();
  if (!got.ok()) return TryNext(got.status());
  if (control_->buffered().size() < kWelcomeBytes) return;
  absl::StatusOr<Welcome> welcome = DecodeWelcome(control_->buffered().first<kWelcomeBytes>());
  control_->Consume(kWelcomeBytes);
  if (!welcome.ok()) return TryNext(welcome.status());
  if (welcome->code == WelcomeCode::kWrongIncarnation) {
    return TryNext(WithReason(
        absl::FailedPreconditionError("another incarnation listens there now: the peer has "
                                      "restarted; add it again with its new metadata"),
        Reason::kPeerRestarted));
  }
  if (welcome->code != WelcomeCode::kJoin || welcome->version != kStreamVersion) {
    return TryNext(absl::FailedPreconditionError(
        absl::StrCat("the peer speaks version ", welcome->version, " of the tcp streams, we ",
                     kStreamVersion, "; use the same kvxfer version on both sides")));
  }
  // Not earlier: until the peer answers, `timeout_` is the limit. The kernel retransmits a lost
  // packet of the handshake only after seconds, and a short user time-out would reset the
  // connection first.
  SetUserTimeout(control_->fd(), kUserTimeoutMs);
  state_ = State::kJoined;
  link_ = welcome->link;
}

void Dialler::OnDeadline() {
  TryNext(absl::UnavailableError(
      absl::StrCat("no connection within ", timeout_ / std::chrono::milliseconds(1), " ms")));
}

}  // namespace kvxfer::net
