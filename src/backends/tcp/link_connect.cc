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

// A data stream may die alone (a middlebox forgets it, one of several paths breaks) and then holds
// its link up for ever. Far longer than on the control stream: the window of a peer that is
// stopped, or has not authorised the link yet, stays closed with bytes waiting, and the time it is
// closed counts too. Such a peer is to have half a minute before its link has to be made again.
constexpr unsigned kDataTimeoutMs = 30'000;

// Busy, the stream ends by the time-out; idle, by keepalive.
void GuardData(int fd) {
  net::SetUserTimeout(fd, kDataTimeoutMs);
  net::SetKeepAlive(fd);
}

}  // namespace

void Link::Dial() {
  state_ = State::kDialling;
  dialler_->Start();
  FollowDialler();
}

void Link::FollowDialler() {
  deadline_ = dialler_->deadline();
  if (dialler_->state() == net::Dialler::State::kFailed) return Down(dialler_->status(), false);
  Activate();
  if (dialler_->state() == net::Dialler::State::kBusy) return;
  id_ = dialler_->link();
  OpenRails();
}

void Link::WorkConnecting() {
  if (state_ == State::kDialling) {
    dialler_->Work();
    FollowDialler();
  }
  if (state_ != State::kJoining) return;
  IntroduceRails();
  if (down() || EndIfHungUp() || !(control_.readable() || control_.HasFrame())) return;
  ReceiveControl(false);
}

void Link::OpenRails() {
  state_ = State::kJoining;
  for (const auto& rail : rails_) {
    absl::StatusOr<net::Fd> fd = net::StartConnect(dialler_->address());
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
                                                    .target = dialler_->peer().incarnation,
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

bool Link::Join(uint32_t rail, net::Fd* fd) {
  if (state_ != State::kJoining || rail >= rails_.size() || rails_[rail]->attached()) return false;
  GuardData(fd->get());
  net::TuneIfLocal(fd->get());
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
  net::SetUserTimeout(control_.fd(), net::Dialler::kUserTimeoutMs);
  net::TuneIfLocal(control_.fd());
  // A broken stream shows when the control stream is read.
  control_.Push(ControlKind::kReady, {}).IgnoreError();
  Activate();
}

void Link::OnDeadline() {
  if (side_ == Side::kAccepting) return Down(absl::DeadlineExceededError("never joined"), false);
  if (state_ == State::kJoining) {
    return Fail(absl::UnavailableError(absl::StrCat(
                    "no connection within ",
                    backend_->options().connect_timeout / std::chrono::milliseconds(1), " ms")),
                "data streams");
  }
  dialler_->OnDeadline();
  FollowDialler();
}

}  // namespace kvxfer::tcp
