// How a link comes up, on either side.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/tcp/backend.h"
#include "src/backends/tcp/link.h"
#include "src/core/strings.h"

namespace kvxfer::tcp {
namespace {

// A dead path to the peer is found on the control stream, on which the agent pings.
constexpr unsigned kUserTimeoutMs = 2000;
// A data stream may die alone (a middlebox forgets it, one of several paths breaks) and then holds
// its link up for ever. Far longer than on the control stream: the window of a peer that is
// stopped, or has not authorised the link yet, stays closed with bytes waiting, and the time it is
// closed counts too. Such a peer is to have half a minute before its link has to be made again.
constexpr unsigned kDataTimeoutMs = 30'000;

// Busy, the stream ends by the time-out; idle, by keepalive.
void GuardData(int fd) {
  SetUserTimeout(fd, kDataTimeoutMs);
  SetKeepAlive(fd);
}

}  // namespace

void Link::Dial() {
  state_ = State::kDialling;
  deadline_ = Now() + backend_->options().connect_timeout;
  absl::StatusOr<Fd> fd = StartConnect(peer_.candidates[candidate_]);
  absl::Status status = fd.status();
  if (fd.ok()) {
    SetUserTimeout(fd->get(), kUserTimeoutMs);
    status = control_.Attach(*std::move(fd));
  }
  if (!status.ok()) return TryNextCandidate(status);
  Activate();
}

void Link::TryNextCandidate(const absl::Status& why) {
  control_.Restart();
  const absl::Status status = Annotate(why, absl::StrCat("tcp peer ", Name(), ", control stream"));
  // An agent that is not the one meant may live at one of its addresses; what it says is told only
  // if the one meant is at none.
  if (absl::IsFailedPrecondition(why) && refused_.ok()) refused_ = status;
  if (absl::IsResourceExhausted(why)) return Down(status, false);
  if (candidate_ + 1 == peer_.candidates.size()) {
    return Down(refused_.ok() ? status : refused_, false);
  }
  ++candidate_;
  Dial();
}

void Link::WorkConnecting() {
  if (state_ == State::kDialling && control_.writable()) SendPreamble();
  if (state_ == State::kGreeting && control_.readable()) ReceiveWelcome();
  if (state_ != State::kJoining) return;
  IntroduceRails();
  if (down() || EndIfHungUp() || !(control_.readable() || control_.HasFrame())) return;
  ReceiveControl(false);
}

void Link::SendPreamble() {
  std::array<std::byte, kPreambleBytes> bytes;
  Encode(Preamble{.role = Role::kControl,
                  .rails = static_cast<uint8_t>(rails_.size()),
                  .target = peer_.incarnation},
         bytes);
  absl::StatusOr<bool> sent = control_.PushRaw(bytes);
  if (!sent.ok()) return TryNextCandidate(sent.status());
  if (!*sent) return;
  state_ = State::kGreeting;
}

void Link::ReceiveWelcome() {
  absl::StatusOr<bool> got = control_.Fill();
  if (!got.ok()) return TryNextCandidate(got.status());
  if (control_.buffered().size() < kWelcomeBytes) return;
  absl::StatusOr<Welcome> welcome = DecodeWelcome(control_.buffered().first<kWelcomeBytes>());
  control_.Consume(kWelcomeBytes);
  if (!welcome.ok()) return TryNextCandidate(welcome.status());
  if (welcome->verdict == Verdict::kWrongIncarnation) {
    return TryNextCandidate(absl::FailedPreconditionError(
        "another incarnation listens there now: the peer has restarted; add it again with its new "
        "metadata"));
  }
  if (welcome->verdict != Verdict::kJoin || welcome->version != kStreamVersion) {
    return TryNextCandidate(absl::FailedPreconditionError(
        absl::StrCat("the peer speaks version ", welcome->version, " of the tcp streams, we ",
                     kStreamVersion, "; use the same kvxfer version on both sides")));
  }
  id_ = welcome->link;
  OpenRails();
}

void Link::OpenRails() {
  state_ = State::kJoining;
  for (const auto& rail : rails_) {
    absl::StatusOr<Fd> fd = StartConnect(peer_.candidates[candidate_]);
    absl::Status status = fd.status();
    if (fd.ok()) {
      GuardData(fd->get());
      status = rail->Attach(*std::move(fd));
    }
    if (!status.ok()) return Fail(status, *rail);
  }
}

void Link::IntroduceRails() {
  for (const auto& rail : rails_) {
    if (rail->introduced() || !rail->writable()) continue;
    absl::StatusOr<bool> sent = rail->SendPreamble({.role = Role::kData,
                                                    .rail = static_cast<uint8_t>(rail->index()),
                                                    .rails = static_cast<uint8_t>(rails_.size()),
                                                    .target = peer_.incarnation,
                                                    .link = id_});
    if (!sent.ok()) return Fail(sent.status(), *rail);
  }
}

absl::StatusOr<bool> Rail::SendPreamble(const Preamble& preamble) {
  std::array<std::byte, kPreambleBytes> bytes;
  Encode(preamble, bytes);
  std::array<iovec, 1> piece{iovec{bytes.data(), bytes.size()}};
  absl::StatusOr<size_t> sent = Write(piece);
  if (!sent.ok()) return sent.status();
  if (*sent != 0 && *sent != bytes.size()) {
    return absl::UnavailableError("no room for the first bytes");
  }
  introduced_ = *sent != 0;
  return introduced_;
}

bool Link::Join(uint32_t rail, Fd* fd) {
  if (state_ != State::kJoining || rail >= rails_.size() || rails_[rail]->attached()) return false;
  GuardData(fd->get());
  TuneIfLocal(fd->get());
  rails_[rail]->Adopt(std::move(*fd));
  return true;
}

bool Link::joined() const {
  return std::all_of(rails_.begin(), rails_.end(),
                     [](const auto& rail) { return rail->attached(); });
}

void Link::GoUp() {
  state_ = State::kUp;
  reported_ = true;
  deadline_.reset();
  SetUserTimeout(control_.fd(), kUserTimeoutMs);
  TuneIfLocal(control_.fd());
  // A broken stream shows when the control stream is read.
  control_.Push(ControlKind::kReady, {}).IgnoreError();
  Activate();
}

void Link::OnDeadline() {
  if (side_ == Side::kAccepting) return Down(absl::DeadlineExceededError("never joined"), false);
  const absl::Status late = absl::UnavailableError(
      absl::StrCat("no connection within ",
                   backend_->options().connect_timeout / std::chrono::milliseconds(1), " ms"));
  if (state_ == State::kJoining) return Fail(late, "data streams");
  TryNextCandidate(late);
}

}  // namespace kvxfer::tcp
