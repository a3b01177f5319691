#include "src/transport/unix_listener.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);
// The most other users whose attempts are logged as a warning, once each.
constexpr size_t kMaxRefusedUids = 16;

}  // namespace

absl::Status UnixListener::Open(Reactor* reactor, const Incarnation& incarnation) {
  // The random part keeps other processes from occupying the name beforehand.
  name_ = absl::StrCat("kvxfer-", backend_, "-", incarnation.ToString(), "-",
                       absl::Hex(RandomNonZero64(), absl::kZeroPad16));
  absl::StatusOr<Fd> socket = ListenUnix(name_);
  if (!socket.ok()) return Annotate(socket.status(), backend_);
  if (absl::Status added = reactor->Add(socket->get(), this); !added.ok()) {
    return Annotate(added, backend_);
  }
  reactor_ = reactor;
  listener_ = *std::move(socket);
  return absl::OkStatus();
}

void UnixListener::Close() {
  if (listener_.valid()) reactor_->Remove(listener_.get());
  listener_.Reset();
  acceptable_ = false;
}

void UnixListener::Work() {
  if (paused_until_ && *paused_until_ <= Now()) {
    paused_until_.reset();
    acceptable_ = true;
  }
  for (int i = 0; i < kAcceptsPerTurn && acceptable_; ++i) {
    Fd socket = Fd::Open([this] {
      return ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (socket.valid()) {
      starved_ = false;
      Take(std::move(socket));
    } else if (errno != EINTR && errno != ECONNABORTED) {
      const int error = errno;
      const bool starved = OutOfResources(error) && ConnectionWaits(listener_.get());
      if (starved && owner_->EndOldestSilent()) continue;
      acceptable_ = false;
      if (!starved) return;
      if (!std::exchange(starved_, true)) {
        Log(LogLevel::kWarning, "{}; new connections wait until descriptors are free",
            ErrnoText(backend_ + ": accept", error));
      }
      paused_until_ = Now() + kAcceptPause;
    }
  }
}

void UnixListener::Take(Fd socket) {
  const absl::StatusOr<Credentials> peer = PeerCredentials(socket.get());
  if (!peer.ok()) return;
  if (peer->uid != ::geteuid()) return Refuse(std::move(socket), *peer);
  owner_->OnAccepted(std::move(socket), *peer);
}

// Logged once per user, because a user could fill the log by repeated attempts.
void UnixListener::Refuse(Fd socket, const Credentials& peer) {
  const bool known = std::ranges::find(refused_uids_, peer.uid) != refused_uids_.end();
  const bool warn = !known && refused_uids_.size() < kMaxRefusedUids;
  if (warn) refused_uids_.push_back(peer.uid);
  Log(warn ? LogLevel::kWarning : LogLevel::kDebug,
      "{}: refused process {} of uid {}: only uid {} may connect", backend_, peer.pid, peer.uid,
      ::geteuid());
  owner_->OnRefused(std::move(socket), peer);
}

}  // namespace kvxfer::net
