#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <future>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kvxfer/metadata.h"
#include "kvxfer/options.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"
#include "src/core/base/thread.h"
#include "src/core/protocol/codec.h"
#include "src/core/protocol/metadata.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer {
namespace net {
namespace {

// How often `go_on` is asked.
constexpr Duration kAskEvery = std::chrono::milliseconds(50);
// The pause before another attempt if the agent was busy.
constexpr Duration kBusyPause = std::chrono::milliseconds(50);
// Memory grows with the bytes received, not with the announced size, which may be damaged.
constexpr size_t kStepBytes = 256 * 1024;

// The error for a welcome that announces no metadata.
absl::Status Refusal(const Welcome& welcome) {
  if (welcome.version != kStreamVersion || welcome.code == WelcomeCode::kWrongVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("the agent speaks version ", welcome.version, " of the tcp streams, we ",
                     kStreamVersion, "; use the same kvxfer version on both sides"));
  }
  switch (welcome.code) {
    case WelcomeCode::kWrongIncarnation:
      return absl::FailedPreconditionError(
          "another backend of an agent listens there; name the address of tcp, which "
          "Agent::listen_address says");
    case WelcomeCode::kNotServed:
      return absl::FailedPreconditionError(
          "the agent does not hand out its metadata; set `serve_metadata` "
          "(KVXFER_SERVE_METADATA=1) where it is made, or bring its metadata here another way");
    case WelcomeCode::kBusy:
      return absl::UnavailableError("the agent is telling too many others; try again");
    case WelcomeCode::kClosing:
      return absl::UnavailableError("the agent is closing");
    default:
      return absl::InternalError(
          absl::StrCat("the answer is damaged: code ", static_cast<int>(welcome.code)));
  }
}

class Fetch {
 public:
  Fetch(Duration timeout, const std::function<bool()>& go_on)
      : timeout_(std::max(timeout, Duration::zero())),
        until_(timeout >= std::chrono::hours(24 * 365) ? Time::max() : Now() + timeout_),
        go_on_(go_on) {}

  // Asks again while the agent is busy and time is left.
  absl::StatusOr<std::string> From(std::span<const SocketAddress> addresses) {
    for (;;) {
      absl::StatusOr<Fd> fd = ConnectToAny(addresses);
      if (!fd.ok()) return fd.status();
      absl::StatusOr<Welcome> welcome = Ask(*fd);
      if (!welcome.ok()) return welcome.status();
      if (welcome->code == WelcomeCode::kJoin && welcome->version == kStreamVersion) {
        return Take(*fd, welcome->bytes);
      }
      absl::Status refusal = Refusal(*welcome);
      if (welcome->code != WelcomeCode::kBusy || Now() + kBusyPause >= until_) return refusal;
      absl::Status waited = Wait(-1, 0, Now() + kBusyPause);
      if (!absl::IsDeadlineExceeded(waited)) return waited;
    }
  }

 private:
  // Each address gets an equal share of the remaining time, so that an unreachable one does not use
  // up the time of the others.
  absl::StatusOr<Fd> ConnectToAny(std::span<const SocketAddress> addresses) {
    absl::Status why;
    for (size_t i = 0; i < addresses.size(); ++i) {
      const Time now = Now();
      const auto left = static_cast<int64_t>(addresses.size() - i);
      const bool last = left == 1 || until_ == Time::max();
      absl::StatusOr<Fd> fd = Connect(addresses[i], last ? until_ : now + (until_ - now) / left);
      if (fd.ok() || absl::IsCancelled(fd.status())) return fd;
      why = fd.status();
    }
    return why;
  }

  absl::StatusOr<Fd> Connect(const SocketAddress& to, Time until) {
    const std::string what = absl::StrCat("connect to ", to.ToString());
    absl::StatusOr<Fd> fd = StartConnect(to);
    if (!fd.ok()) return Annotate(fd.status(), to.ToString());
    absl::Status waited = Wait(fd->get(), POLLOUT, until);
    if (absl::IsDeadlineExceeded(waited)) {
      return Late(absl::StrCat("no connection to ", to.ToString(), " within ",
                               until == until_ ? "" : "its share of "));
    }
    if (!waited.ok()) return waited;
    // Writable only means that the attempt has ended.
    const int error = SocketError(fd->get());
    if (error == 0) return fd;
    return absl::UnavailableError(absl::StrCat(
        ErrnoText(what, error), error == ECONNREFUSED ? "; is the agent running there?" : ""));
  }

  absl::StatusOr<Welcome> Ask(const Fd& fd) {
    std::array<std::byte, kPreambleBytes> preamble;
    Encode(Preamble{.rails = 1, .service = Service::kMetadata}, preamble);
    if (absl::Status sent = Send(fd, preamble); !sent.ok()) return sent;
    std::array<std::byte, kWelcomeBytes> bytes{};
    const std::span all(bytes);
    constexpr size_t kMagicBytes = 4;
    absl::Status got = Receive(fd, all.first(kMagicBytes), 0, kWelcomeBytes);
    if (!got.ok()) return got;
    // Checked after 4 bytes: another program may send something shorter than a welcome and wait.
    if (wire::LoadLittle<uint32_t>(bytes.data()) != kWelcomeMagic) {
      const auto* const text = reinterpret_cast<const char*>(bytes.data());
      return absl::InternalError(
          absl::StrCat("what listens there is no kvxfer agent: it answers \"",
                       absl::CHexEscape({text, kMagicBytes}), "...\""));
    }
    got = Receive(fd, all.subspan(kMagicBytes), kMagicBytes, kWelcomeBytes);
    if (!got.ok()) return got;
    return DecodeWelcome(bytes);
  }

  absl::StatusOr<std::string> Take(const Fd& fd, uint64_t bytes) {
    if (bytes > kMaxMetadataBytes) {
      return absl::InternalError(absl::StrCat("the answer is damaged: it announces ", bytes,
                                              " bytes, and metadata has at most ",
                                              kMaxMetadataBytes));
    }
    std::string out;
    while (out.size() < bytes) {
      const size_t have = out.size();
      out.resize(have + std::min<size_t>(bytes - have, kStepBytes));
      const auto step = std::as_writable_bytes(std::span(out)).subspan(have);
      absl::Status got = Receive(fd, step, kWelcomeBytes + have, kWelcomeBytes + bytes);
      if (!got.ok()) return got;
    }
    // Errors of the envelope are the peer's fault here, not the caller's.
    const absl::Status whole = CheckWhole(out);
    if (absl::IsInvalidArgument(whole)) return absl::InternalError(whole.message());
    if (!whole.ok()) return whole;
    return out;
  }

  absl::Status Send(const Fd& fd, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) {
        bytes = bytes.subspan(static_cast<size_t>(n));
      } else if (errno == EAGAIN) {
        absl::Status waited = Wait(fd.get(), POLLOUT, until_);
        if (absl::IsDeadlineExceeded(waited)) return Late("connected, and nothing taken within ");
        if (!waited.ok()) return waited;
      } else if (errno != EINTR) {
        return absl::UnavailableError(ErrnoText("send", errno));
      }
    }
    return absl::OkStatus();
  }

  // Fills `into`. `have` bytes of the answer were received before; `all` is its size as far as
  // known.
  absl::Status Receive(const Fd& fd, std::span<std::byte> into, size_t have, size_t all) {
    while (!into.empty()) {
      const ssize_t n = ::recv(fd.get(), into.data(), into.size(), MSG_DONTWAIT);
      if (n > 0) {
        into = into.subspan(static_cast<size_t>(n));
        have += static_cast<size_t>(n);
      } else if (n == 0) {
        return Ended(have, all);
      } else if (errno == EAGAIN) {
        absl::Status waited = Wait(fd.get(), POLLIN, until_);
        if (absl::IsDeadlineExceeded(waited)) {
          return Late(absl::StrCat("connected, but ", have, " of ", all, " bytes came within "));
        }
        if (!waited.ok()) return waited;
      } else if (errno != EINTR) {
        return absl::UnavailableError(ErrnoText("receive", errno));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Ended(size_t have, size_t all) {
    if (have > 0) {
      return absl::UnavailableError(
          absl::StrCat("the connection was closed after ", have, " of ", all, " bytes"));
    }
    return absl::UnavailableError(
        "the connection was closed without an answer: the agent ends, or is of an earlier kvxfer "
        "that hands out no metadata, or another program listens there");
  }

  absl::Status Late(std::string_view what) const {
    return absl::DeadlineExceededError(
        absl::StrCat(ToAbsl(what), timeout_ / std::chrono::milliseconds(1), " ms"));
  }

  // Waits until `fd` is ready (a negative fd never is). DeadlineExceeded, without text; Cancelled.
  absl::Status Wait(int fd, int16_t events, Time until) {
    for (;;) {
      if (go_on_ && !go_on_()) return absl::CancelledError("given up by the caller");
      const Duration left = until - Now();
      if (left <= Duration::zero()) return absl::DeadlineExceededError("");
      const Duration most = go_on_ ? kAskEvery : Duration(std::chrono::minutes(1));
      const auto turn = std::chrono::ceil<std::chrono::milliseconds>(std::min(left, most));
      pollfd poll_fd{.fd = fd, .events = events, .revents = 0};
      if (::poll(&poll_fd, 1, static_cast<int>(turn.count())) > 0) return absl::OkStatus();
    }
  }

  const Duration timeout_;
  const Time until_;
  const std::function<bool()>& go_on_;
};

absl::Status CheckConnectable(std::span<const SocketAddress> addresses) {
  for (const SocketAddress& address : addresses) {
    if (address.port() != 0 && !address.IsWildcard()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(address.ToString(),
                     " cannot be connected to; expected what Agent::listen_address says, with an "
                     "address of that host"));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace net

absl::StatusOr<std::string> FetchMetadata(std::string_view address, Duration timeout,
                                          const std::function<bool()>& go_on) {
  const std::string what = absl::StrCat("metadata of ", ToAbsl(address));
  // Begins the time-out before the resolver, whose time counts.
  net::Fetch fetch(timeout, go_on);
  absl::StatusOr<std::vector<net::SocketAddress>> addresses =
      net::Resolve(address, kDefaultPort, net::Names::kResolve);
  if (!addresses.ok()) return addresses.status();
  if (absl::Status status = net::CheckConnectable(*addresses); !status.ok()) {
    return Annotate(status, what);
  }
  absl::StatusOr<std::string> metadata = fetch.From(*addresses);
  if (!metadata.ok()) return Annotate(metadata.status(), what);
  return metadata;
}

std::future<absl::StatusOr<std::string>> FetchMetadataAsync(const std::string& address,
                                                            Duration timeout,
                                                            std::function<bool()> go_on) {
  std::promise<absl::StatusOr<std::string>> promise;
  auto future = promise.get_future();
  try {
    StartThread("kvxfer-fetch", [address, timeout, go_on = std::move(go_on),
                                 promise = std::move(promise)]() mutable {
      promise.set_value(FetchMetadata(address, timeout, go_on));
    }).detach();
  } catch (const std::system_error& error) {
    // The promise went with the thread's function.
    std::promise<absl::StatusOr<std::string>> failed;
    failed.set_value(absl::ResourceExhaustedError(absl::StrCat(
        "metadata of ", address, ": no thread for the fetch: ", error.code().message())));
    return failed.get_future();
  }
  return future;
}

}  // namespace kvxfer
