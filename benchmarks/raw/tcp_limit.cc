// What TCP over loopback gives between two processes, without any protocol: the floor under
// `kvxfer bench --backend tcp` and `kvxfer ping --backend tcp`.
//
//   gather     blocks permuted on both sides; sendmsg and readv of up to 1,024 blocks at once over
//              --connections connections, one blocking thread each
//   per-block  the same with one send and one recv a block
//   ping-pong  blocking round trips of --size bytes, --count times
//
// A round ends when the receiver's one-byte answers are here. The order of blocks is known to both
// sides, so nothing but payload travels. The first round is not counted.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "benchmarks/raw/raw.h"

namespace raw {
namespace {

constexpr size_t kMaxRuns = 1024;

using Runs = std::vector<iovec>;

sockaddr* AsSockaddr(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

// Connected pairs: [0] for the sender, [1] for the receiver.
std::vector<std::pair<int, int>> Connect(uint64_t count) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  if (bind(listener, AsSockaddr(&address), size) != 0 || listen(listener, 16) != 0 ||
      getsockname(listener, AsSockaddr(&address), &size) != 0) {
    Die("listening on loopback");
  }
  std::vector<std::pair<int, int>> pairs;
  for (uint64_t i = 0; i < count; ++i) {
    const int ours = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ours, AsSockaddr(&address), size) != 0) Die("connecting over loopback");
    const int theirs = accept(listener, nullptr, nullptr);
    const int on = 1;
    for (int fd : {ours, theirs}) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    pairs.emplace_back(ours, theirs);
  }
  close(listener);
  return pairs;
}

// The share of connection `index`: every count-th block, in the side's own order.
Runs Share(std::span<std::byte> memory, uint64_t block_bytes, const std::vector<uint32_t>& ids,
           size_t index, size_t count) {
  Runs runs;
  for (size_t i = index; i < ids.size(); i += count) {
    runs.push_back({memory.data() + ids[i] * block_bytes, block_bytes});
  }
  return runs;
}

// Moves all of `runs`, at most `batch` of them with one call.
void MoveAll(int fd, Runs runs, size_t batch, bool sending) {
  for (size_t at = 0; at < runs.size();) {
    msghdr message{};
    message.msg_iov = &runs[at];
    message.msg_iovlen = std::min(batch, runs.size() - at);
    const ssize_t moved = sending
                              ? sendmsg(fd, &message, MSG_NOSIGNAL)
                              : readv(fd, message.msg_iov, static_cast<int>(message.msg_iovlen));
    if (moved <= 0) Die(sending ? "sending" : "receiving");
    for (auto left = static_cast<size_t>(moved); left > 0;) {
      const size_t step = std::min(left, runs[at].iov_len);
      runs[at].iov_base = static_cast<std::byte*>(runs[at].iov_base) + step;
      runs[at].iov_len -= step;
      left -= step;
      if (runs[at].iov_len == 0) ++at;
    }
  }
}

void MoveByte(int fd, bool sending) {
  char byte = 1;
  const ssize_t moved =
      sending ? send(fd, &byte, 1, MSG_NOSIGNAL) : recv(fd, &byte, 1, MSG_WAITALL);
  if (moved != 1) Die("a one-byte answer");
}

// One side of every round. The sender returns the seconds of each counted round.
std::vector<double> Rounds(const std::vector<int>& fds, const std::vector<Runs>& shares,
                           size_t batch, bool sending, uint64_t rounds) {
  std::vector<double> seconds;
  for (uint64_t round = 0; round <= rounds; ++round) {
    const double start = Now();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < fds.size(); ++i) {
      threads.emplace_back([&, i] {
        MoveAll(fds[i], shares[i], batch, sending);
        MoveByte(fds[i], !sending);
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (round > 0) seconds.push_back(Now() - start);
  }
  return seconds;
}

void CheckEveryByteArrived(std::span<const std::byte> target, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; ++i) {
    if (target[i] != std::byte{7}) {
      std::fprintf(stderr, "byte %lu did not arrive\n", i);
      std::exit(1);
    }
  }
}

void Blocks(const Options& options, const std::string& mode, uint64_t block_bytes, Report& report) {
  const uint64_t blocks = options.total / block_bytes;
  const std::span<std::byte> source = SharedMemory(options.total, 7, options);
  const std::span<std::byte> target = SharedMemory(options.total, 0, options);
  const auto pairs = Connect(options.connections);
  const size_t batch = mode == "gather" ? kMaxRuns : 1;
  const auto side = [&](bool sending) {
    std::vector<int> fds;
    std::vector<Runs> shares;
    const auto ids = Permutation(blocks, sending ? kSourceSeed : kTargetSeed);
    for (size_t i = 0; i < pairs.size(); ++i) {
      fds.push_back(sending ? pairs[i].first : pairs[i].second);
      shares.push_back(Share(sending ? source : target, block_bytes, ids, i, pairs.size()));
    }
    return Rounds(fds, shares, batch, sending, options.rounds);
  };
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    side(/*sending=*/false);
    _exit(0);
  }
  std::vector<double> seconds = side(/*sending=*/true);
  waitpid(child, nullptr, 0);
  CheckEveryByteArrived(target, blocks * block_bytes);
  report.Add(mode, block_bytes, blocks, std::move(seconds));
  for (const auto& [a, b] : pairs) close(a), close(b);
  munmap(source.data(), source.size());
  munmap(target.data(), target.size());
}

void PingPong(const Options& options, Report& report) {
  const auto pairs = Connect(1);
  std::vector<std::byte> payload(options.size);
  const Runs runs = {{payload.data(), payload.size()}};
  std::fflush(stdout);
  const pid_t child = fork();
  const int fd = child == 0 ? pairs[0].second : pairs[0].first;
  std::vector<double> seconds;
  for (uint64_t i = 0; i <= options.count; ++i) {
    const double start = Now();
    MoveAll(fd, runs, 1, /*sending=*/child != 0);
    MoveAll(fd, runs, 1, /*sending=*/child == 0);
    if (i > 0) seconds.push_back(Now() - start);
  }
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  report.Add("ping-pong", options.size, 1, std::move(seconds));
  close(pairs[0].first);
  close(pairs[0].second);
}

}  // namespace
}  // namespace raw

int main(int argc, char** argv) {
  const raw::Options options = raw::ParseOptions(argc, argv);
  raw::Report report(options.json);
  for (const char* mode : {"gather", "per-block"}) {
    if (!options.mode.empty() && options.mode != mode) continue;
    for (uint64_t size : options.block_sizes) raw::Blocks(options, mode, size, report);
  }
  if (options.mode.empty() || options.mode == "ping-pong") raw::PingPong(options, report);
  return 0;
}
