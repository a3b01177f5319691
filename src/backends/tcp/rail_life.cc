// TcpRail: how the socket of a data stream comes and goes.

#include <algorithm>
#include <utility>

#include "src/backends/tcp/rail.h"
#include "src/transport/dialler.h"

namespace kvxfer::tcp {
namespace {

// The time-out for stalls that acknowledgements do not show. A peer that is stopped, or that has
// not authorised the endpoint yet, keeps its window closed while bytes wait; a dead path would look
// the same. TCP_USER_TIMEOUT also counts the time with a closed window, so such a peer gets half a
// minute.
constexpr unsigned kDataTimeoutMs = 30'000;
// How long data may be unacknowledged while the peer's window is open: as on the control stream.
constexpr uint32_t kSilentMs = net::Dialler::kUserTimeoutMs;

// A busy stream ends by the user time-out, an idle one by keepalive.
void GuardData(int fd) {
  net::SetUserTimeout(fd, kDataTimeoutMs);
  net::SetKeepAlive(fd);
}

}  // namespace

TcpRail::TcpRail(RailHost* host, net::StreamClient* client, bool connecting, uint32_t index)
    : Stream(client), host_(host), connecting_(connecting), index_(index) {}

absl::Status TcpRail::MoveTo(RailHost* host, net::StreamClient* client) {
  host_ = host;
  return Stream::MoveTo(client);
}

absl::Status TcpRail::Dial(uint32_t life, const net::SocketAddress& from,
                           const net::SocketAddress& to) {
  life_ = life;
  absl::StatusOr<net::Fd> fd = net::StartConnect(to, from);
  if (!fd.ok()) return fd.status();
  GuardData(fd->get());
  if (absl::Status added = Attach(*std::move(fd)); !added.ok()) return added;
  state_ = State::kConnecting;
  return absl::OkStatus();
}

absl::Status TcpRail::Greet(Preamble preamble) {
  preamble.life = life_;
  if (state_ == State::kConnecting && writable()) {
    if (absl::Status sent = SendPreamble(preamble); !sent.ok()) return sent;
  }
  if (state_ == State::kGreeting && readable()) return ReadWelcome(preamble.link);
  return absl::OkStatus();
}

absl::Status TcpRail::SendPreamble(const Preamble& preamble) {
  std::array<std::byte, kPreambleBytes> bytes;
  Encode(preamble, bytes);
  std::array<iovec, 1> piece{iovec{bytes.data(), bytes.size()}};
  absl::StatusOr<size_t> sent = Write(piece);
  if (!sent.ok()) return sent.status();
  // 0: the socket was not writable after all, try again. A new socket has space for the few bytes
  // of a preamble, so a partial write means that something is wrong.
  if (*sent == 0) return absl::OkStatus();
  if (*sent != bytes.size()) return absl::UnavailableError("no room for the first bytes");
  state_ = State::kGreeting;
  return absl::OkStatus();
}

absl::Status TcpRail::ReadWelcome(const LinkId& link) {
  std::array<iovec, 1> piece{iovec{welcome_.data() + welcomed_, welcome_.size() - welcomed_}};
  absl::StatusOr<size_t> got = Read(piece);
  if (!got.ok()) return got.status();
  welcomed_ += *got;
  if (welcomed_ < welcome_.size()) return absl::OkStatus();
  absl::StatusOr<Welcome> welcome = DecodeWelcome(welcome_);
  if (!welcome.ok()) return welcome.status();
  if (welcome->code != WelcomeCode::kJoin || welcome->link != link) {
    return absl::UnavailableError("somebody else took the stream for one of its own");
  }
  state_ = State::kUp;
  last_up_ = life_;
  return absl::OkStatus();
}

void TcpRail::Take(net::Fd fd, uint32_t life) {
  GuardData(fd.get());
  net::TuneIfLocal(fd.get());
  Adopt(std::move(fd));
  life_ = last_up_ = life;
  state_ = State::kUp;
}

void TcpRail::Close(const absl::Status& why) {
  CancelOps(0, why);
  Release();
  state_ = State::kDown;
  watched_ = false;
  given_ = 0;
  welcomed_ = 0;
  out_.clear();
  queued_bytes_ = 0;
  sent_ = 0;
  stage_ = Stage::kHead;
  discard_ = false;
  landings_.clear();
  payload_left_ = 0;
  in_begin_ = in_end_ = 0;
  in_.reset();
}

bool TcpRail::Stalled(Time now) {
  const net::SendProgress progress = net::ProgressOf(fd());
  // Keep watching while bytes are unsent or unacknowledged.
  watched_ = progress.waiting || !out_.empty();
  if (!progress.unanswered || progress.acknowledged != acknowledged_) {
    acknowledged_ = progress.acknowledged;
    answered_ = now;
    return false;
  }
  return progress.silent_ms >= kSilentMs && now - answered_ >= std::chrono::milliseconds(kSilentMs);
}

// The preamble, the welcome and markers are small: they pass even if packets of full size do not.
RailLife::Carried TcpRail::carried() const {
  using Carried = RailLife::Carried;
  const net::SendProgress progress = net::ProgressOf(fd());
  if (progress.acknowledged >= kPreambleBytes + progress.segment ||
      progress.received >= kWelcomeBytes + progress.segment) {
    return Carried::kData;
  }
  if (given_ >= 2 * progress.segment) return Carried::kNothing;
  // The kernel counts a SYN as a byte.
  const bool nothing =
      progress.acknowledged <= kPreambleBytes + 1 && progress.received <= kWelcomeBytes + 1;
  return given_ > 0 && nothing ? Carried::kUnheard : Carried::kUnknown;
}

}  // namespace kvxfer::tcp
