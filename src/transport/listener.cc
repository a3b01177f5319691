#include "src/transport/listener.h"

#include <array>
#include <cerrno>
#include <utility>

#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::net {
namespace {

constexpr int kAcceptsPerTurn = 32;

}  // namespace

void Answer(const Fd& fd, const Welcome& welcome) {
  std::array<std::byte, kWelcomeBytes> bytes;
  Encode(welcome, bytes);
  // Best effort: the peer learns the reason if its socket still takes it.
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

Listener::Inbound::Inbound(Listener* owner, Fd socket, std::string peer)
    : listener(owner),
      fd(std::move(socket)),
      from(std::move(peer)),
      deadline(Now() + kPreambleTimeout) {}

Listener::Inbound::~Inbound() {
  if (fd.valid()) listener->reactor_->Remove(fd.get());
}

void Listener::Inbound::OnReady(uint32_t) {
  readable = true;
  listener->fresh_ = true;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Create(Reactor* reactor, Acceptor* acceptor,
                                                           const SocketAddress& at) {
  absl::StatusOr<Fd> fd = Listen(at);
  if (!fd.ok()) return fd.status();
  std::unique_ptr<Listener> listener(new Listener(reactor, acceptor, *std::move(fd)));
  if (absl::Status added = reactor->Add(listener->fd_.get(), listener.get()); !added.ok()) {
    return Annotate(added, "tcp: listener");
  }
  return listener;
}

Listener::~Listener() {
  // inbound_ must go first: its elements use the reactor through this listener.
  inbound_.clear();
  reactor_->Remove(fd_.get());
}

void Listener::OnReady(uint32_t) { acceptable_ = !paused_until_.has_value(); }

void Listener::Work() {
  if (acceptable_) AcceptSome();
  if (!std::exchange(fresh_, false)) return;
  for (auto it = inbound_.begin(); it != inbound_.end();) {
    it = it->readable && !ReadPreamble(*it) ? inbound_.erase(it) : std::next(it);
  }
}

void Listener::AcceptSome() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    SocketAddress from;
    from.length = sizeof(from.storage);
    // accept4 runs inside Open, so that no fork comes between accepting and recording the
    // descriptor.
    Fd fd = Fd::Open([&] {
      return ::accept4(fd_.get(), from.get(), &from.length, SOCK_CLOEXEC | SOCK_NONBLOCK);
    });
    if (!fd.valid()) {
      const int error = errno;
      const bool none = error == EAGAIN || (OutOfResources(error) && !ConnectionWaits(fd_.get()));
      if (none) acceptable_ = false;
      if (none || error == EBADF) return;
      if (OutOfResources(error) && acceptor_->EndOldestUnproved()) continue;
      if (OutOfResources(error)) return PauseAccepting(error);
      continue;  // the connection at the head of the queue was broken and is gone
    }
    starved_ = false;
    SetNoDelay(fd.get());
    // A flood of silent connections displaces the oldest of them, not working links.
    if (inbound_.size() >= kMaxInbound) inbound_.pop_front();
    Inbound& inbound = inbound_.emplace_back(this, std::move(fd), from.ToString());
    if (!reactor_->Add(inbound.fd.get(), &inbound).ok()) inbound_.pop_back();
    acceptor_->KeepShare();
    fresh_ = true;
  }
}

void Listener::PauseAccepting(int error_number) {
  if (!std::exchange(starved_, true)) {
    Log(LogLevel::kWarning, "tcp: {}; new connections wait until descriptors are free",
        ErrnoText("accept", error_number));
  }
  // Edge-triggered: no event would come for connections that already wait, so the pause ends with a
  // timer.
  acceptable_ = false;
  paused_until_ = Now() + kAcceptPause;
}

bool Listener::ReadPreamble(Inbound& inbound) {
  while (inbound.have < inbound.bytes.size()) {
    const ssize_t n = ::recv(inbound.fd.get(), inbound.bytes.data() + inbound.have,
                             inbound.bytes.size() - inbound.have, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      inbound.readable = false;
      return true;
    }
    if (n <= 0) return false;
    inbound.have += static_cast<size_t>(n);
  }
  absl::StatusOr<Preamble> preamble = DecodePreamble(inbound.bytes);
  // Not logged above debug: anyone can send nonsense.
  if (!preamble.ok()) {
    Log(LogLevel::kDebug, "tcp: stream from {} is not taken: {}", inbound.from,
        std::string_view(preamble.status().message().data(), preamble.status().message().size()));
    return false;
  }
  acceptor_->OnPreamble(std::move(inbound.fd), *preamble, inbound.from);
  return false;
}

std::optional<Time> Listener::oldest() const {
  if (inbound_.empty()) return std::nullopt;
  return inbound_.front().deadline - kPreambleTimeout;
}

std::optional<Time> Listener::deadline() const {
  if (inbound_.empty()) return paused_until_;
  return Earlier(paused_until_, inbound_.front().deadline);
}

void Listener::OnDeadline(Time now) {
  if (paused_until_ && *paused_until_ <= now) {
    paused_until_.reset();
    acceptable_ = true;
  }
  while (!inbound_.empty() && inbound_.front().deadline <= now) inbound_.pop_front();
}

}  // namespace kvxfer::net
