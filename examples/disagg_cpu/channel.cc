#include "examples/disagg_cpu/channel.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace disagg {
namespace {

constexpr Milliseconds kGatherTimeout{10'000};

absl::Status ErrnoStatus(const std::string& what) {
  const std::string text = what + ": " + std::strerror(errno);
  return errno == EPIPE || errno == ECONNRESET ? absl::UnavailableError(text)
                                               : absl::InternalError(text);
}

absl::Status WaitFor(int fd, int16_t events, Milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (true) {
    const auto left =
        std::chrono::ceil<Milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd entry{.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&entry, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (ready > 0) return absl::OkStatus();
    if (ready == 0) {
      return absl::DeadlineExceededError("nothing within " + std::to_string(timeout.count()) +
                                         " ms");
    }
    if (errno != EINTR) return ErrnoStatus("poll");
  }
}

}  // namespace

absl::StatusOr<std::pair<Channel, Channel>> Channel::MakePair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus("socketpair");
  }
  return std::pair(Channel(fds[0]), Channel(fds[1]));
}

Channel::~Channel() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Channel::Send(std::span<const std::byte> message, Milliseconds timeout) const {
  while (true) {
    if (absl::Status status = WaitFor(fd_, POLLOUT, timeout); !status.ok()) return status;
    if (send(fd_, message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
      return absl::OkStatus();
    }
    if (errno != EAGAIN && errno != EINTR) return ErrnoStatus("send");
  }
}

absl::StatusOr<std::vector<std::byte>> Channel::Receive(Milliseconds timeout) const {
  if (absl::Status status = WaitFor(fd_, POLLIN, timeout); !status.ok()) return status;
  const ssize_t bytes = recv(fd_, nullptr, 0, MSG_PEEK | MSG_TRUNC);
  if (bytes < 0) return ErrnoStatus("recv");
  if (bytes == 0) return absl::UnavailableError("the other process is gone");
  std::vector<std::byte> message(static_cast<size_t>(bytes));
  if (recv(fd_, message.data(), message.size(), 0) != bytes) return ErrnoStatus("recv");
  return message;
}

absl::StatusOr<std::vector<TensorGroup>> TensorGroup::Make(uint32_t size) {
  std::vector<TensorGroup> ranks(size);
  for (uint32_t r = 0; r < size; ++r) {
    ranks[r].rank_ = r;
    ranks[r].others_.resize(size);
  }
  for (uint32_t a = 0; a < size; ++a) {
    for (uint32_t b = a + 1; b < size; ++b) {
      auto pair = Channel::MakePair();
      if (!pair.ok()) return pair.status();
      ranks[a].others_[b] = std::move(pair->first);
      ranks[b].others_[a] = std::move(pair->second);
    }
  }
  return ranks;
}

// Everyone sends before anyone receives: what is sent waits in the sockets, which hold more than a
// layer's attention of the prompts here.
absl::Status TensorGroup::AllGather(std::span<float> values) const {
  const auto annotate = [&](uint32_t other, const absl::Status& status) {
    return absl::Status(status.code(), "exchange with rank " + std::to_string(other) + ": " +
                                           std::string(status.message()));
  };
  const size_t part = values.size() / size();
  for (uint32_t other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    absl::Status sent =
        others_[other].Send(std::as_bytes(values.subspan(rank_ * part, part)), kGatherTimeout);
    if (!sent.ok()) return annotate(other, sent);
  }
  for (uint32_t other = 0; other < size(); ++other) {
    if (other == rank_) continue;
    auto theirs = others_[other].Receive(kGatherTimeout);
    if (!theirs.ok()) return annotate(other, theirs.status());
    const auto to = std::as_writable_bytes(values.subspan(other * part, part));
    if (theirs->size() != to.size()) {
      return annotate(other, absl::InternalError("it sent " + std::to_string(theirs->size()) +
                                                 " bytes, not " + std::to_string(to.size())));
    }
    std::ranges::copy(*theirs, to.begin());
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> TensorGroup::AllOf(bool mine) const {
  std::vector<float> flags(size());
  flags[rank_] = mine ? 1 : 0;
  if (absl::Status status = AllGather(flags); !status.ok()) return status;
  return std::ranges::all_of(flags, [](float flag) { return flag != 0; });
}

}  // namespace disagg
