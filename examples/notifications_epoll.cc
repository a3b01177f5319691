// An event loop that is told of arrivals by a descriptor, beside its other descriptors.

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "kvxfer/agent.h"

namespace {

constexpr int kRequests = 5;

// The other worker: it tells of its requests, one after the other.
absl::Status Tell(kvxfer::Agent& agent) {
  for (int i = 0; i < kRequests; ++i) {
    auto transfer = agent.Notify("decode-0", "request " + std::to_string(i));
    if (!transfer.ok()) return transfer.status();
    if (absl::Status done = transfer->Wait(std::chrono::seconds(5)); !done.ok()) return done;
  }
  return absl::OkStatus();
}

absl::Status Listen(kvxfer::Agent& agent, int epoll) {
  epoll_event interest{};
  interest.events = EPOLLIN;
  interest.data.fd = agent.notification_fd();
  if (epoll_ctl(epoll, EPOLL_CTL_ADD, agent.notification_fd(), &interest) != 0) {
    return absl::InternalError(std::strerror(errno));
  }
  int seen = 0;
  while (seen < kRequests) {
    epoll_event ready{};
    const int count = epoll_wait(epoll, &ready, 1, 5000);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return absl::DeadlineExceededError("no notification within 5 s");
    // Polled until it is empty; the descriptor itself is never read.
    while (auto told = agent.PollNotification()) {
      std::printf("%s from %s\n", told->payload.c_str(), told->peer.c_str());
      ++seen;
    }
  }
  return absl::OkStatus();
}

absl::Status Run() {
  kvxfer::AgentOptions options;
  options.name = "decode-0";
  auto decode = kvxfer::Agent::Create(options);
  if (!decode.ok()) return decode.status();
  options.name = "prefill-0";
  auto prefill = kvxfer::Agent::Create(options);
  if (!prefill.ok()) return prefill.status();
  auto metadata = (*decode)->Metadata();
  if (!metadata.ok()) return metadata.status();
  if (auto peer = (*prefill)->AddPeer(*metadata); !peer.ok()) return peer.status();

  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) return absl::InternalError(std::strerror(errno));
  absl::Status told;
  std::thread other([&] { told = Tell(**prefill); });
  const absl::Status listened = Listen(**decode, epoll);
  other.join();
  close(epoll);
  return listened.ok() ? told : listened;
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "notifications_epoll: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
