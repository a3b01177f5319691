// Two or more tcp backends in one thread, driven through the Backend interface, for the tcp tests.
#ifndef KVXFER_TESTS_UNIT_BACKENDS_TCP_TEST_UTIL_H_
#define KVXFER_TESTS_UNIT_BACKENDS_TCP_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/backends/tcp/factory.h"
#include "src/backends/tcp/frames.h"
#include "src/transport/sockets/socket.h"
#include "tests/support/run_blocks.h"

namespace kvxfer::tcp_test {

using net::Fd;
using OpRun = kvxfer::Run;  // ::testing::Test has a Run of its own

inline AgentOptions Streams(uint32_t count) {
  AgentOptions options;
  options.backend["tcp"]["streams"] = std::to_string(count);
  return options;
}

inline HostIdentity ThisHost() {
  return {.hostname = "here", .boot_id = "boot-1", .net_namespace = 1, .pid_namespace = 1};
}

// A backend with everything its Poll reported.
struct Node {
  explicit Node(AgentOptions with = {}) : options(std::move(with)) {
    absl::StatusOr<std::unique_ptr<Backend>> made =
        MakeTcpBackend({options, incarnation, ThisHost()});
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) backend = *std::move(made);
  }

  // One Poll; `max` events at most.
  size_t Poll(size_t max = 64) {
    std::vector<Event> events(max);
    const size_t n = backend->Poll(events, Input::kAll);
    for (size_t i = 0; i < n; ++i) Take(events[i]);
    return n;
  }

  void Take(Event& event) {
    switch (event.kind) {
      case EventKind::kAccepted:
        accepted.push_back(std::move(event.accepted));
        break;
      case EventKind::kConnected:
        ++connected;
        break;
      case EventKind::kDown:
        down.emplace_back(event.endpoint, event.status);
        break;
      case EventKind::kMessage:
        messages.emplace_back(reinterpret_cast<const char*>(event.message.data()),
                              event.message.size());
        break;
      case EventKind::kImmediate:
        immediates.push_back(event.immediate);
        break;
      case EventKind::kCompletion:
        EXPECT_FALSE(completions.contains(event.id)) << "op " << event.id << " completed twice";
        completions[event.id] = event.status;
        break;
      case EventKind::kFenced:
        if (event.id == FenceScope::kEveryTransfer) {
          rails_fenced.push_back(event.rail);
        } else {
          EXPECT_EQ(event.rail, FenceScope::kEveryRail);
          fenced.push_back(event.id);
        }
        break;
      case EventKind::kRailDown:
        rails_down.emplace_back(event.rail, event.status);
        break;
      case EventKind::kRailUp:
        rails_up.push_back(event.rail);
        break;
    }
  }

  std::unique_ptr<Registration> Register(void* data, size_t bytes, uint32_t rkey, Access access) {
    auto out =
        backend->Register({.rkey = rkey, .span = {.data = data, .bytes = bytes}, .access = access});
    EXPECT_TRUE(out.ok()) << out.status();
    return out.ok() ? *std::move(out) : nullptr;
  }

  AgentOptions options;
  Incarnation incarnation = Incarnation::Random();
  std::unique_ptr<Backend> backend;
  std::vector<std::unique_ptr<Endpoint>> accepted;
  int connected = 0;
  std::vector<std::pair<Endpoint*, absl::Status>> down;
  std::vector<std::string> messages;
  std::vector<uint32_t> immediates;
  std::map<uint64_t, absl::Status> completions;
  std::vector<uint64_t> fenced;
  std::vector<std::pair<uint32_t, absl::Status>> rails_down;
  std::vector<uint32_t> rails_up;
  std::vector<uint32_t> rails_fenced;
};

template <typename Done>
bool Drive(const std::vector<Node*>& nodes, Done done,
           std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    for (Node* node : nodes) node->Poll();
  }
  return true;
}

inline std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes + 8);
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    std::memcpy(out.data() + i, &word, 8);
  }
  out.resize(bytes);
  return out;
}

// Two nodes, a connected and authorised link from `a` to `b`, and `bytes` of memory at each side:
// a's is a pattern, b's is zero; rkey 7 at b.
class TcpPair : public ::testing::Test {
 protected:
  static constexpr uint32_t kRkey = 7;

  void Up(size_t bytes, const AgentOptions& options = {}, Access access = Access::kReadWrite,
          bool authorize = true) {
    a = std::make_unique<Node>(options);
    b = std::make_unique<Node>(options);
    source = Pattern(bytes, 1);
    sink.assign(bytes, std::byte{0});
    source_registration = a->Register(source.data(), bytes, 3, Access::kNone);
    sink_registration = b->Register(sink.data(), bytes, kRkey, access);
    auto made = a->backend->Connect(b->backend->Describe().address, ThisHost());
    ASSERT_TRUE(made.ok()) << made.status();
    endpoint = *std::move(made);
    ASSERT_TRUE(
        Drive({a.get(), b.get()}, [&] { return a->connected == 1 && b->accepted.size() == 1; }));
    if (authorize) b->accepted[0]->Authorize();
    key = Key(kRkey);
  }

  std::unique_ptr<RemoteKey> Key(uint32_t rkey) {
    auto out = endpoint->Import({.rkey = rkey}, "");
    EXPECT_TRUE(out.ok()) << out.status();
    return *std::move(out);
  }

  OpRun RunAt(uint64_t local_offset, uint64_t remote_offset, uint64_t bytes) {
    return {.local = reinterpret_cast<uint64_t>(source.data()) + local_offset,
            .remote = reinterpret_cast<uint64_t>(sink.data()) + remote_offset,
            .bytes = bytes,
            .registration = source_registration.get(),
            .key = key.get()};
  }

  // What an op moves; stays valid until the end of the test.
  BlockRange Blocks(const std::vector<OpRun>& runs) {
    blocks_.push_back(std::make_unique<testing::RunBlocks>(runs));
    return blocks_.back()->range();
  }

  uint32_t Rails() const { return static_cast<uint32_t>(endpoint->Describe().rails.size()); }

  // Posts from the front of `ops` while there is space; returns how many.
  size_t PostSome(std::span<const Op> ops) {
    size_t accepted = 0;
    while (accepted < ops.size() && endpoint->Post(ops[accepted])) ++accepted;
    return accepted;
  }

  // Posts all of `ops`, polling while there is no room.
  bool PostAll(const std::vector<Op>& ops) {
    std::span<const Op> left(ops);
    return Drive({a.get(), b.get()}, [&] {
      left = left.subspan(PostSome(left));
      return left.empty();
    });
  }

  bool Settle(size_t completions) {
    return Drive({a.get(), b.get()}, [&] { return a->completions.size() >= completions; });
  }

  std::unique_ptr<Node> a;
  std::unique_ptr<Node> b;
  std::vector<std::byte> source;
  std::vector<std::byte> sink;
  std::unique_ptr<Registration> source_registration;
  std::unique_ptr<Registration> sink_registration;
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<RemoteKey> key;

 private:
  std::vector<std::unique_ptr<testing::RunBlocks>> blocks_;
};

// A peer of b that is only sockets, and says what the test makes it say.
class TcpStranger : public TcpPair {
 protected:
  net::SocketAddress ListenAddress() {
    const std::string text = b->backend->Describe().address;
    return net::Resolve(text.substr(text.rfind(';') + 1), 0, net::Names::kNumericOnly)->front();
  }

  // A blocking socket connected to b's listener.
  Fd Stranger() {
    const net::SocketAddress to = ListenAddress();
    Fd fd(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), to.get(), to.length), 0);
    return fd;
  }

  void Say(const Fd& fd, const tcp::Preamble& preamble) {
    std::array<std::byte, tcp::kPreambleBytes> bytes;
    tcp::Encode(preamble, bytes);
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{48});
  }

  tcp::Welcome Hear(const Fd& fd) {
    std::array<std::byte, tcp::kWelcomeBytes> bytes{};
    ssize_t n = 0;
    EXPECT_TRUE(Drive({b.get()}, [&] {
      n = ::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      return n >= 0;
    }));
    EXPECT_EQ(n, static_cast<ssize_t>(bytes.size()));
    absl::StatusOr<tcp::Welcome> welcome = tcp::DecodeWelcome(bytes);
    EXPECT_TRUE(welcome.ok());
    return welcome.ok() ? *welcome : tcp::Welcome{};
  }
};

}  // namespace kvxfer::tcp_test

#endif  // KVXFER_TESTS_UNIT_BACKENDS_TCP_TEST_UTIL_H_
