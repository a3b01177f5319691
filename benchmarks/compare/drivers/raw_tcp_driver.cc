// What TCP over loopback gives between two processes without any protocol: the limit for
// contestants on tcp.
//
//   gather       sendmsg and readv of up to 1,024 blocks at once
//   gather-reno  the same with that congestion control, whatever the machine's default is: one that
//                paces, as BBR does, holds loopback back
//   per-block    one send and one recv a block
//
// --threads N: so many connections, each with a thread of its own (none for one connection). The
// answer is one byte on each. The order of blocks is known to both sides, so nothing but payload
// travels. --spin polls the sockets instead of blocking in them.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "benchmarks/compare/drivers/driver.h"
#include "benchmarks/compare/drivers/memory.h"

namespace compare {
namespace {

constexpr size_t kMaxRuns = 1024;

sockaddr* AsSockaddr(sockaddr_in* address) { return reinterpret_cast<sockaddr*>(address); }

class RawTcp : public Contestant {
 public:
  explicit RawTcp(const Config& config)
      : config_(config), cache_(MapShared(config.cache_fd, config.bytes)) {}

  std::span<std::byte> memory() override { return cache_; }

  Json Hello() override {
    if (config_.prefill) return Json::object();
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (listener_ < 0 || bind(listener_, AsSockaddr(&address), size) != 0 ||
        listen(listener_, 64) != 0 || getsockname(listener_, AsSockaddr(&address), &size) != 0) {
      FailErrno("listening on loopback");
    }
    return {{"port", ntohs(address.sin_port)}};
  }

  void Meet(const Json& other) override {
    for (uint64_t i = 0; i < config_.threads; ++i) {
      const int fd = config_.prefill ? Connect(other.at("port").get<uint16_t>())
                                     : accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) FailErrno("accepting a connection");
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      if (config_.mode == "gather-reno" &&
          setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) {
        FailErrno("choosing reno");
      }
      fds_.push_back(fd);
    }
  }

  double Round(const Blocks& blocks) override {
    std::vector<std::thread> others;
    for (size_t i = 1; i < fds_.size(); ++i) {
      others.emplace_back([&, i] { Move(blocks, i); });
    }
    Move(blocks, 0);
    for (std::thread& other : others) other.join();
    return 0;
  }

 private:
  static int Connect(uint16_t port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, AsSockaddr(&address), sizeof(address)) != 0) {
      FailErrno("connecting over loopback");
    }
    return fd;
  }

  // The share of one connection: every n-th block; its answer too.
  void Move(const Blocks& blocks, size_t connection) {
    const std::vector<uint32_t>& ids = config_.prefill ? blocks.source_ids : blocks.target_ids;
    const size_t batch = config_.mode == "per-block" ? 1 : kMaxRuns;
    const int fd = fds_[connection];
    std::vector<iovec> runs;
    for (size_t at = connection; at < ids.size();) {
      runs.clear();
      for (; at < ids.size() && runs.size() < batch; at += fds_.size()) {
        runs.push_back({memory().data() + ids[at] * blocks.block_bytes, blocks.block_bytes});
      }
      MoveRuns(fd, runs, config_.prefill);
    }
    char byte = 1;
    MoveRuns(fd, iovec{&byte, 1}, !config_.prefill);
  }

  void MoveRuns(int fd, std::span<iovec> runs, bool sending) const {
    const int flags = MSG_NOSIGNAL | (config_.spin ? MSG_DONTWAIT : 0);
    while (!runs.empty()) {
      msghdr message{};
      message.msg_iov = runs.data();
      message.msg_iovlen = runs.size();
      const ssize_t moved = sending ? sendmsg(fd, &message, flags) : recvmsg(fd, &message, flags);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (moved <= 0) FailErrno(sending ? "sending" : "receiving");
      for (auto left = static_cast<size_t>(moved); left > 0;) {
        iovec& run = runs.front();
        const size_t step = std::min(left, run.iov_len);
        run.iov_base = static_cast<std::byte*>(run.iov_base) + step;
        run.iov_len -= step;
        left -= step;
        if (run.iov_len == 0) runs = runs.subspan(1);
      }
    }
  }

  void MoveRuns(int fd, iovec run, bool sending) const {
    MoveRuns(fd, std::span<iovec>(&run, 1), sending);
  }

  const Config config_;
  const std::span<std::byte> cache_;
  int listener_ = -1;
  std::vector<int> fds_;
};

}  // namespace
}  // namespace compare

int main(int argc, char** argv) {
  return compare::RunDriver(argc, argv, [](const compare::Config& config) {
    if (config.mode != "gather" && config.mode != "gather-reno" && config.mode != "per-block") {
      compare::Fail("--mode must be gather, gather-reno or per-block");
    }
    return std::make_unique<compare::RawTcp>(config);
  });
}
