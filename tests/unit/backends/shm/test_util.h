// What the tests of the shm backend share: one side of a connection, and a peer in a process of
// its own.

#ifndef KVXFER_TESTS_UNIT_BACKENDS_SHM_TEST_UTIL_H_
#define KVXFER_TESTS_UNIT_BACKENDS_SHM_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/backend.h"
#include "src/backends/shm/factory.h"
#include "src/core/base/clock.h"
#include "src/core/base/host_identity.h"
#include "tests/support/open_files.h"
#include "tests/support/run_blocks.h"

namespace kvxfer::shm_test {

using kvxfer::testing::OpenFiles;
using kvxfer::testing::RunBlocks;

using Piece = Run;  // in a test, Run is a method of ::testing::Test

inline constexpr Duration kPatience = std::chrono::seconds(30);
inline constexpr size_t kMiB = 1024 * 1024;

inline uint64_t AddressOf(const void* p) { return reinterpret_cast<uintptr_t>(p); }

inline std::byte PatternAt(uint64_t seed, size_t i) {
  const uint64_t x = (seed + i) * 0x9E3779B97F4A7C15u;
  return static_cast<std::byte>(x >> 56);
}
inline void Fill(void* data, size_t bytes, uint64_t seed) {
  auto* p = static_cast<std::byte*>(data);
  for (size_t i = 0; i < bytes; ++i) p[i] = PatternAt(seed, i);
}
// The index of the first wrong byte, or `bytes`.
inline size_t FirstWrong(const void* data, size_t bytes, uint64_t seed) {
  const auto* p = static_cast<const std::byte*>(data);
  for (size_t i = 0; i < bytes; ++i) {
    if (p[i] != PatternAt(seed, i)) return i;
  }
  return bytes;
}

// One backend with what its Poll has reported so far.
struct Side {
  AgentOptions options;
  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<Endpoint>> endpoints;  // accepted or connected
  std::map<uint64_t, absl::Status> completions;
  std::vector<std::string> messages;
  std::vector<uint64_t> fenced;
  std::map<const Endpoint*, absl::Status> down;
  size_t connected = 0;
  size_t after_down = 0;  // events of an endpoint after its last: must stay 0
  std::atomic<uint32_t> next_region = 1;

  explicit Side(ControlCarrier control = ControlCarrier::kAuto) {
    options.control = control;
    // With more of them, one Poll may move everything that can be queued.
    options.backend["shm"]["copy_threads"] = "1";
    absl::StatusOr<std::unique_ptr<Backend>> made = MakeShmBackend(
        {.options = options, .incarnation = Incarnation::Random(), .host = ReadHostIdentity()});
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) backend = *std::move(made);
  }
  ~Side() { endpoints.clear(); }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  size_t Poll() {
    std::array<Event, 64> events;
    const size_t n = backend->Poll(events, Input::kAll);
    for (size_t i = 0; i < n; ++i) Take(events[i]);
    return n;
  }

  void Take(Event& event) {
    after_down += down.contains(event.endpoint) ? 1u : 0u;
    switch (event.kind) {
      case EventKind::kAccepted:
        endpoints.push_back(std::move(event.accepted));
        break;
      case EventKind::kConnected:
        ++connected;
        break;
      case EventKind::kDown:
        down[event.endpoint] = event.status;
        break;
      case EventKind::kMessage:
        messages.emplace_back(reinterpret_cast<const char*>(event.message.data()),
                              event.message.size());
        break;
      case EventKind::kCompletion:
        EXPECT_TRUE(completions.emplace(event.id, event.status).second) << "completed twice";
        break;
      case EventKind::kFenced:
        fenced.push_back(event.id);
        EXPECT_EQ(event.rail, FenceScope::kEveryRail);
        break;
      case EventKind::kImmediate:
        ADD_FAILURE() << "shm has no immediates";
        break;
      case EventKind::kRailDown:
      case EventKind::kRailUp:
        ADD_FAILURE() << "shm's rail does not fail alone";
        break;
    }
  }

  // Posts on an endpoint of this side. False: it was not accepted.
  bool Post(Endpoint* endpoint, const Op& op) {
    const Posted posted = endpoint->Post(op);
    if (posted.done()) {
      EXPECT_TRUE(completions.emplace(op.id, absl::OkStatus()).second) << "completed twice";
    }
    return posted;
  }

  struct Region {
    std::unique_ptr<Registration> registration;
    RemoteRegion remote;  // as metadata tells it
    std::string key;
  };
  // As in an agent, a turn follows, in which peers are sent what they need.
  Region Register(const MemorySpan& span, Access access = Access::kReadWrite) {
    Region region = RegisterWithoutTurn(span, access);
    Poll();
    return region;
  }
  Region RegisterWithoutTurn(const MemorySpan& span, Access access = Access::kReadWrite) {
    const RegionId id{next_region++};
    const LocalRegion local{.rkey = 7, .span = span, .access = access};
    auto registration = backend->Register(local);
    EXPECT_TRUE(registration.ok()) << registration.status();
    if (!registration.ok()) return {};
    Region region;
    region.registration = *std::move(registration);
    region.key = region.registration->key;
    region.remote = {.id = id,
                     .rkey = 7,
                     .base = AddressOf(span.data),
                     .bytes = span.bytes,
                     .kind = MemoryKind::kHost,
                     .device_id = 0,
                     .access = access};
    return region;
  }
};

// A run from the beginning of one region to the beginning of another.
inline Piece RunBetween(const Side::Region& here, const RemoteRegion& there, uint64_t bytes,
                        const RemoteKey* key) {
  return {.local = here.remote.base,
          .remote = there.base,
          .bytes = bytes,
          .registration = here.registration.get(),
          .key = key};
}

// Polls every side until `done`; false after kPatience.
inline bool Drive(std::initializer_list<Side*> sides, const std::function<bool()>& done,
                  Duration patience = kPatience) {
  const Time end = Now() + patience;
  while (!done()) {
    size_t n = 0;
    for (Side* side : sides) n += side->Poll();
    if (n == 0 && Now() > end) return false;
  }
  return true;
}

inline bool Send(Endpoint* endpoint, std::string_view text) {
  return endpoint->Send(std::as_bytes(std::span(text)));
}

// Posts `ops` in order, until one is not accepted; returns how many were.
inline size_t PostAll(Side& side, Endpoint* endpoint, std::span<const Op> ops) {
  size_t accepted = 0;
  while (accepted < ops.size() && side.Post(endpoint, ops[accepted])) ++accepted;
  return accepted;
}

// Moves all `runs` in ops within the limits of shm, and returns the first status that is not OK.
inline absl::Status Move(std::initializer_list<Side*> sides, Side& initiator, Endpoint* endpoint,
                         OpKind kind, std::span<const Run> runs, uint64_t transfer = 1) {
  const Capabilities& limits = initiator.backend->capabilities();
  std::vector<Run> cut;       // of one op
  std::deque<RunBlocks> ops;  // the blocks of each
  uint64_t bytes = 0;
  for (Run run : runs) {
    do {
      if (bytes == limits.max_op_bytes || cut.size() == limits.max_op_pieces) {
        ops.emplace_back(std::exchange(cut, {}));
        bytes = 0;
      }
      Run piece = run;
      piece.bytes = std::min<uint64_t>(run.bytes, limits.max_op_bytes - bytes);
      cut.push_back(piece);
      bytes += piece.bytes;
      run.local += piece.bytes;
      run.remote += piece.bytes;
      run.bytes -= piece.bytes;
    } while (run.bytes > 0);
  }
  if (!cut.empty()) ops.emplace_back(cut);
  static uint64_t next_id = 1000;
  const uint64_t begin = next_id;
  const Time end = Now() + kPatience;
  for (const RunBlocks& blocks : ops) {
    const Op op{.kind = kind, .id = next_id++, .transfer = transfer, .blocks = blocks.range()};
    while (!initiator.Post(endpoint, op)) {
      for (Side* side : sides) side->Poll();
      if (initiator.down.contains(endpoint)) return initiator.down.at(endpoint);
      if (Now() > end) return absl::DeadlineExceededError("no room for an op");
    }
  }
  const bool all = Drive(sides, [&] {
    auto from = initiator.completions.lower_bound(begin);
    return static_cast<uint64_t>(std::distance(from, initiator.completions.end())) ==
           next_id - begin;
  });
  if (!all) return absl::DeadlineExceededError("ops without completion");
  for (uint64_t id = begin; id < next_id; ++id) {
    if (!initiator.completions.at(id).ok()) return initiator.completions.at(id);
  }
  return absl::OkStatus();
}

// Runs `body` in a forked child with one end of a socket pair, and kills it at the end.
class Child {
 public:
  explicit Child(const std::function<void(int)>& body) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      close(ends[0]);
      body(ends[1]);
      _exit(0);
    }
    close(ends[1]);
    fd_ = ends[0];
    timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  }
  ~Child() {
    Kill(SIGKILL);
    if (fd_ >= 0) close(fd_);
    Reap();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return fd_; }
  void Kill(int signal) const { kill(pid_, signal); }
  int Reap() {
    int status = 0;
    if (!reaped_) waitpid(pid_, &status, 0);
    reaped_ = true;
    return status;
  }
  std::string Ask(std::string_view command) const {
    EXPECT_EQ(write(fd_, command.data(), command.size()), static_cast<ssize_t>(command.size()));
    return Hear();
  }
  std::string Hear() const { return HearFrom(fd_); }
  static std::string HearFrom(int fd) {
    std::string text(65536, '\0');
    const ssize_t n = read(fd, text.data(), text.size());
    text.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return text;
  }
  static void Tell(int fd, std::string_view text) {
    if (write(fd, text.data(), text.size()) < 0) _exit(9);
  }

 private:
  pid_t pid_ = -1;
  int fd_ = -1;
  bool reaped_ = false;
};

}  // namespace kvxfer::shm_test

#endif  // KVXFER_TESTS_UNIT_BACKENDS_SHM_TEST_UTIL_H_
