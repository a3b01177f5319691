#include "src/cli/common/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "src/core/base/clock.h"
#include "src/core/base/strings.h"
#include "src/transport/host/message_order.h"

namespace kvxfer::cli {
namespace {

int MillisecondsUntil(Time end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

absl::Status NoMessage(const std::string& peer) {
  return absl::UnavailableError(
      peer + " does not send kvxfer messages; is that the port of a `kvxfer serve`?");
}

}  // namespace

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

// Sends (POLLOUT) or receives (POLLIN) exactly `size` bytes.
absl::Status Channel::Transfer(char* bytes, size_t size, int16_t events, Duration timeout) {
  const Time end = Now() + timeout;
  while (size > 0) {
    const ssize_t moved = events == POLLOUT
                              ? send(socket_.get(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(socket_.get(), bytes, size, MSG_DONTWAIT);
    if (moved > 0) {
      bytes += moved;
      size -= static_cast<size_t>(moved);
      continue;
    }
    const int error = errno;
    if (moved == 0) return absl::UnavailableError(peer_ + " closed the connection");
    if (error == EINTR) continue;
    if (error != EAGAIN) return absl::UnavailableError(ErrnoText(peer_, error));
    pollfd wait{.fd = socket_.get(), .events = events, .revents = 0};
    if (poll(&wait, 1, MillisecondsUntil(end)) == 0 && Now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          peer_, " did not answer within ",
          std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(), " ms"));
    }
  }
  return absl::OkStatus();
}

absl::Status Channel::Send(const Json& message, Duration timeout) {
  const std::string text = DumpJson(message);
  if (text.size() > kMaxChannelMessage) {
    return absl::InvalidArgumentError(absl::StrCat("message to ", peer_, ": ", text.size(),
                                                   " bytes are more than ", kMaxChannelMessage));
  }
  const auto size = static_cast<uint32_t>(text.size());
  std::string bytes;
  for (unsigned shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>(static_cast<uint8_t>(size >> shift));
  }
  bytes += text;
  MessageIsSent();
  return Transfer(bytes.data(), bytes.size(), POLLOUT, timeout);
}

// One time-out for the whole message, so that a peer that sends one byte a second times out too.
absl::StatusOr<Json> Channel::Receive(Duration timeout) {
  const Time end = Now() + timeout;
  std::string bytes(4, '\0');
  if (absl::Status s = Transfer(bytes.data(), bytes.size(), POLLIN, timeout); !s.ok()) return s;
  uint32_t size = 0;
  for (size_t i = 4; i-- > 0;) size = size << 8 | static_cast<uint8_t>(bytes[i]);
  if (size > kMaxChannelMessage) {
    return NoMessage(peer_);
  }
  bytes.resize(size);
  const Duration left = std::max<Duration>(end - Now(), std::chrono::milliseconds(1));
  if (absl::Status s = Transfer(bytes.data(), size, POLLIN, left); !s.ok()) return s;
  absl::StatusOr<Json> json = ParseJsonObject(bytes);
  if (!json.ok()) return NoMessage(peer_);
  return json;
}

absl::StatusOr<Json> Channel::ReceiveAnswer(Duration timeout) {
  absl::StatusOr<Json> answer = Receive(timeout);
  if (!answer.ok() || !answer->contains("error")) return answer;
  const absl::StatusOr<uint64_t> code = GetUint(*answer, "status");
  const auto known = code.ok() && *code >= 1 && *code <= 16 ? static_cast<absl::StatusCode>(*code)
                                                            : absl::StatusCode::kUnknown;
  return absl::Status(known, absl::StrCat(peer_, ": ", GetString(*answer, "error")));
}

absl::StatusOr<Json> Channel::Call(const Json& message, Duration timeout) {
  if (absl::Status status = Send(message); !status.ok()) return status;
  return ReceiveAnswer(timeout);
}

bool Channel::Readable() const {
  pollfd state{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

bool Channel::Writable() const {
  pollfd state{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

bool Channel::Closed() const {
  pollfd state{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Channel::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

Json ErrorAnswer(const absl::Status& status) {
  return {{"error", std::string(status.message())}, {"status", static_cast<int>(status.code())}};
}

}  // namespace kvxfer::cli
