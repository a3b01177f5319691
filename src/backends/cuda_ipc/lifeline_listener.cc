#include "src/backends/cuda_ipc/lifeline_listener.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda_ipc {
namespace {

constexpr int kAcceptsPerTurn = 16;
constexpr Duration kAcceptPause = std::chrono::milliseconds(100);

}  // namespace

absl::Status LifelineListener::Open(net::Reactor* reactor, const Incarnation& incarnation) {
  // The random part keeps other processes from occupying the name beforehand.
  name_ = absl::StrCat("kvxfer-cuda-", incarnation.ToString(), "-",
                       absl::Hex(RandomNonZero64(), absl::kZeroPad16));
  absl::StatusOr<net::Fd> socket = NewSocket();
  if (!socket.ok()) return Annotate(socket.status(), "cuda_ipc");
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, name_.data(), name_.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name_.size());
  if (::bind(socket->get(), reinterpret_cast<const sockaddr*>(&name), bytes) != 0 ||
      ::listen(socket->get(), SOMAXCONN) != 0) {
    return absl::UnavailableError(
        ErrnoText(absl::StrCat("cuda_ipc: listening on @", name_), errno));
  }
  if (absl::Status added = reactor->Add(socket->get(), this); !added.ok()) {
    return Annotate(added, "cuda_ipc");
  }
  reactor_ = reactor;
  listener_ = *std::move(socket);
  acceptable_ = true;
  return absl::OkStatus();
}

void LifelineListener::Close() {
  waiting_.clear();
  if (listener_.valid()) reactor_->Remove(listener_.get());
  listener_.Reset();
  acceptable_ = false;
}

bool LifelineListener::HasWork() const {
  return acceptable_ ||
         std::ranges::any_of(waiting_, [](const auto& one) { return one->HasWork(); });
}

void LifelineListener::Work() {
  if (acceptable_) Accept();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    it = (*it)->HasWork() && !Hear(*it) ? waiting_.erase(it) : std::next(it);
  }
}

void LifelineListener::OnDeadline(Time now) {
  if (!paused_until_ || now < *paused_until_) return;
  paused_until_.reset();
  acceptable_ = true;
}

void LifelineListener::Accept() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    net::Fd socket = net::Fd::Open([this] {
      return ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    });
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      acceptable_ = false;
      if (OutOfResources(errno)) {
        Log(LogLevel::kWarning, "cuda_ipc: {}; new connections wait until descriptors are free",
            ErrnoText("accept", errno));
        paused_until_ = Now() + kAcceptPause;
      }
      return;
    }
    absl::StatusOr<std::unique_ptr<Lifeline>> lifeline =
        Lifeline::Adopt(reactor_, std::move(socket));
    if (!lifeline.ok()) continue;
    if ((*lifeline)->peer().uid != ::geteuid()) {
      Refuse((*lifeline)->peer());
      continue;
    }
    if (waiting_.size() == kMaxWaiting) waiting_.pop_front();
    waiting_.push_back(*std::move(lifeline));
  }
}

// Logged once per user, because a user could fill the log by repeated attempts.
void LifelineListener::Refuse(const Credentials& peer) {
  const bool known = std::ranges::find(refused_users_, peer.uid) != refused_users_.end();
  const bool warn = !known && refused_users_.size() < kMaxRefusedUsers;
  if (warn) refused_users_.push_back(peer.uid);
  Log(warn ? LogLevel::kWarning : LogLevel::kDebug,
      "cuda_ipc: refused process {} of uid {}: only uid {} may connect", peer.pid, peer.uid,
      ::geteuid());
}

bool LifelineListener::Hear(std::unique_ptr<Lifeline>& lifeline) {
  Lifeline::Packet packet;
  const Lifeline::Got got = lifeline->Receive(packet);
  if (got == Lifeline::Got::kNothing) return true;
  const auto dial = wire::TryDecode<DialPacket>(packet.body);
  if (got == Lifeline::Got::kPacket && packet.type == PacketType::kDial && dial) {
    owner_->OnDial(std::move(lifeline), *dial);
  }
  return false;
}

}  // namespace kvxfer::cuda_ipc
