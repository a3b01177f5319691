// What TCP over loopback gives between two processes without any protocol: the raw reference
// for contestants on tcp.
//
//   gather       sendmsg and recvmsg of up to 1,024 blocks at once
//   gather-reno  the same with that congestion control, whatever the machine's default is: one that
//                paces, as BBR does, holds loopback back
//   per-block    one send and one recv a block
//
// --connections N, shared evenly by --threads N: a thread with one connection blocks in its calls,
// one with several asks poll which of them goes on. The answer is one byte on each. The order of
// blocks is known to both sides, so nothing but payload travels. --spin polls the sockets instead
// of blocking in them.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
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

// Moves one call's worth of `runs` and takes it off them. False: would block.
bool MoveSome(int fd, std::span<iovec>& runs, bool sending, int flags) {
  msghdr message{};
  message.msg_iov = runs.data();
  message.msg_iovlen = runs.size();
  const ssize_t moved = sending ? sendmsg(fd, &message, flags | MSG_NOSIGNAL)
                                : recvmsg(fd, &message, flags | MSG_NOSIGNAL);
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (moved <= 0) FailErrno(sending ? "sending" : "receiving");
  for (auto left = static_cast<size_t>(moved); left > 0;) {
    iovec& run = runs.front();
    const size_t step = std::min(left, run.iov_len);
    run.iov_base = static_cast<std::byte*>(run.iov_base) + step;
    run.iov_len -= step;
    left -= step;
    if (run.iov_len == 0) runs = runs.subspan(1);
  }
  return true;
}

// What is left to move on one connection: every n-th block.
class Share {
 public:
  Share(int fd, std::span<std::byte> memory, const std::vector<uint32_t>& ids, size_t block_bytes,
        size_t first, size_t step, size_t batch)
      : fd_(fd),
        memory_(memory),
        ids_(ids),
        block_bytes_(block_bytes),
        at_(first),
        step_(step),
        batch_(batch) {}

  int fd() const { return fd_; }
  bool done() const { return runs_.empty() && at_ >= ids_.size(); }
  bool Move(bool sending, int flags) {
    if (runs_.empty()) Load();
    return MoveSome(fd_, runs_, sending, flags);
  }

 private:
  void Load() {
    loaded_.clear();
    for (; at_ < ids_.size() && loaded_.size() < batch_; at_ += step_) {
      loaded_.push_back({memory_.data() + ids_[at_] * block_bytes_, block_bytes_});
    }
    runs_ = loaded_;
  }

  int fd_;
  std::span<std::byte> memory_;
  std::span<const uint32_t> ids_;
  size_t block_bytes_;
  size_t at_;
  size_t step_;
  size_t batch_;
  std::vector<iovec> loaded_;
  std::span<iovec> runs_;
};

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
    ChooseControl(listener_);
    if (listener_ < 0 || bind(listener_, AsSockaddr(&address), size) != 0 ||
        listen(listener_, 64) != 0 || getsockname(listener_, AsSockaddr(&address), &size) != 0) {
      FailErrno("listening on loopback");
    }
    return {{"port", ntohs(address.sin_port)}};
  }

  void Meet(const Json& other) override {
    for (uint64_t i = 0; i < config_.connections; ++i) {
      const int fd = config_.prefill ? Connect(other.at("port").get<uint16_t>())
                                     : accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) FailErrno("accepting a connection");
      const int on = 1;
      setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      fds_.push_back(fd);
    }
  }

  double Round(const Blocks& blocks) override {
    std::vector<std::thread> others;
    for (uint64_t t = 1; t < config_.threads; ++t) {
      others.emplace_back([&, t] { Move(blocks, t); });
    }
    Move(blocks, 0);
    for (std::thread& other : others) other.join();
    return 0;
  }

 private:
  // Before there is a connection: what BBR has begun to pace it paces for life. What a listener
  // accepts has its choice.
  void ChooseControl(int fd) const {
    if (config_.mode == "gather-reno" && fd >= 0 &&
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) != 0) {
      FailErrno("choosing reno");
    }
  }

  int Connect(uint16_t port) const {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ChooseControl(fd);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, AsSockaddr(&address), sizeof(address)) != 0) {
      FailErrno("connecting over loopback");
    }
    return fd;
  }

  // The connections of one thread; their answers too.
  void Move(const Blocks& blocks, uint64_t thread) {
    const std::vector<uint32_t>& ids = config_.prefill ? blocks.source_ids : blocks.target_ids;
    const size_t batch = config_.mode == "per-block" ? 1 : kMaxRuns;
    std::vector<Share> shares;
    for (size_t i = thread; i < fds_.size(); i += config_.threads) {
      shares.emplace_back(fds_[i], memory(), ids, blocks.block_bytes, i, fds_.size(), batch);
    }
    const int flags = config_.spin || shares.size() > 1 ? MSG_DONTWAIT : 0;
    MoveAll(shares, flags);
    const int answer_flags = config_.spin ? MSG_DONTWAIT : 0;
    for (size_t i = thread; i < fds_.size(); i += config_.threads) {
      char byte = 1;
      iovec one{&byte, 1};
      std::span<iovec> run(&one, 1);
      while (!run.empty()) MoveSome(fds_[i], run, !config_.prefill, answer_flags);
    }
  }

  // Several connections on one thread: one that would block is left alone until poll names it.
  void MoveAll(std::vector<Share>& shares, int flags) const {
    const bool polls = flags != 0 && !config_.spin;
    const auto wanted = static_cast<int16_t>(config_.prefill ? POLLOUT : POLLIN);
    std::vector<pollfd> sockets;
    sockets.reserve(shares.size());
    for (const Share& share : shares) sockets.push_back({share.fd(), wanted, wanted});
    for (;;) {
      bool left = false;
      bool ready = false;
      for (size_t i = 0; i < shares.size(); ++i) {
        pollfd& socket = sockets[i];
        if (!shares[i].done() && socket.revents != 0) {
          if (!shares[i].Move(config_.prefill, flags) && polls) socket.revents = 0;
        }
        if (shares[i].done()) socket.fd = -1;
        left |= !shares[i].done();
        ready |= !shares[i].done() && socket.revents != 0;
      }
      if (!left) return;
      if (polls && !ready) poll(sockets.data(), sockets.size(), -1);
    }
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
