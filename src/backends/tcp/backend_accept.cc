// Streams that come in become links, or join one.

#include <algorithm>
#include <array>
#include <utility>

#include "src/backends/tcp/backend.h"
#include "src/core/log.h"

namespace kvxfer::tcp {
namespace {

constexpr size_t kMaxHalfOpen = 256;

// Best effort: the socket is new, so its buffer has room.
void Answer(const net::Fd& fd, const Welcome& welcome) {
  std::array<std::byte, kWelcomeBytes> bytes;
  Encode(welcome, bytes);
  (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

void TcpBackend::OnPreamble(net::Fd fd, const Preamble& preamble, const std::string& from) {
  if (preamble.version != kStreamVersion) {
    Log(LogLevel::kDebug, "tcp: {} speaks version {} of the tcp streams, we {}", from,
        preamble.version, kStreamVersion);
    Answer(fd, {.verdict = Verdict::kWrongVersion});
    reactor_->Remove(fd.get());
  } else if (preamble.service != net::Service::kTcp) {
    reactor_->Remove(fd.get());
  } else if (preamble.role == Role::kControl) {
    OnControlPreamble(std::move(fd), preamble, from);
  } else {
    OnDataPreamble(std::move(fd), preamble);
  }
}

void TcpBackend::OnControlPreamble(net::Fd fd, const Preamble& preamble, const std::string& from) {
  if (preamble.target != incarnation_) {
    Answer(fd, {.verdict = Verdict::kWrongIncarnation});
    reactor_->Remove(fd.get());
    return;
  }
  const LinkId id = Incarnation::Random().bytes;
  Answer(fd, {.verdict = Verdict::kJoin, .link = id});
  if (half_open_.size() >= kMaxHalfOpen) half_open_.erase(half_open_.begin());
  half_open_.push_back(std::make_unique<Link>(this, std::move(fd), from, preamble.rails, id));
  links_.push_back(half_open_.back().get());
  waiting_.push_back(half_open_.back().get());
}

void TcpBackend::OnDataPreamble(net::Fd fd, const Preamble& preamble) {
  const auto it = std::find_if(half_open_.begin(), half_open_.end(), [&](const auto& link) {
    return link->id() == preamble.link && link->rails() == preamble.rails;
  });
  if (it == half_open_.end() || preamble.target != incarnation_ ||
      !(*it)->Join(preamble.rail, &fd)) {
    reactor_->Remove(fd.get());
    return;
  }
  if (!(*it)->joined()) return;
  Event event;
  event.kind = EventKind::kAccepted;
  event.endpoint = it->get();
  Link* const link = it->get();
  event.accepted = std::move(*it);
  half_open_.erase(it);
  sink_.Emit(std::move(event));
  link->GoUp();
}

}  // namespace kvxfer::tcp
