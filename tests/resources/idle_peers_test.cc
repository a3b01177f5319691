// What an idle peer costs the agent that it is connected to: time, and the bytes of operator new.
// That is all of kvxfer's memory, except for the mapped rings (idle_rings_test.cc). What vendors'
// libraries and the kernel hold is theirs.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/log.h"
#include "src/backends/verbs/message_parts.h"
#include "tests/resources/counted_allocations.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/flavour.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

constexpr double kMostBytes = 24 * 1024;
// Devices in memory work within one process, so both sides are counted there, and halved. Their
// queue pairs stand for what a driver and a NIC hold. The two receives of a writer, one when
// halved, are in a page that it has from its start, and are not seen.
constexpr double kOfTestDevices = 4.5 * 1024;
constexpr double kNotSeen = verbs::kMessageBufferBytes;
constexpr size_t kFirst = 4;  // peers of a hub before: what it has once is there then
const Shape kShape{.ids = 8};

std::vector<Flavour> Flavours() {
  Flavour ringless = CudaIpcFlavour();
  ringless.name += "Ringless";
  ringless.control = ControlCarrier::kTcp;
  std::vector<Flavour> all = PlainFlavours();
  all.push_back(ringless);
  std::ranges::move(CarrierFlavours(), std::back_inserter(all));
  std::erase_if(all, [](const Flavour& flavour) {
    return flavour.backend == "loopback" || flavour.name == VerbsCudaFlavour().name;
  });
  return all;
}

// An agent that others write to, and what they must know of it.
struct Hub {
  Node node;
  std::string metadata;

  static absl::StatusOr<Hub> Create(const Flavour& flavour, std::string_view name) {
    auto node = Node::Create(OptionsFor(flavour, name), flavour.memory, kShape.memory_bytes());
    if (!node.ok()) return node.status();
    auto metadata = node->agent->Metadata();
    if (!metadata.ok()) return metadata.status();
    return Hub{*std::move(node), *std::move(metadata)};
  }
};

// Agents that write to a hub, and then have nothing more to do.
class Writers {
 public:
  absl::Status Create(const Flavour& flavour, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto node = Node::Create(OptionsFor(flavour, "w" + std::to_string(i)), flavour.memory,
                               kShape.memory_bytes());
      if (!node.ok()) return node.status();
      nodes_.push_back(*std::move(node));
    }
    return absl::OkStatus();
  }
  // Those from `first` on, before `last`.
  absl::Status Write(size_t first, size_t last, const std::string& metadata, uint64_t base) const {
    for (size_t i = first; i < last; ++i) {
      const Node& node = nodes_[i];
      const auto hub = node.agent->AddPeer(metadata);
      if (!hub.ok()) return hub.status();
      const BlockSet blocks(kShape, node.memory.address(), base);
      const auto write = blocks.Write(*node.agent, *hub, Telling("written"));
      if (!write.ok()) return write.status();
      if (absl::Status end = write->Wait(kAmple); !end.ok()) return end;
    }
    return absl::OkStatus();
  }

 private:
  std::vector<Node> nodes_;
};

// Writers in a process of their own, where the flavour reaches one.
class WritersApart {
 public:
  ~WritersApart() {
    if (fd_ >= 0) ::close(fd_);
  }

  absl::Status Create(const Flavour& flavour, size_t count) {
    if (!flavour.between_processes()) return here_.Create(flavour, count);
    std::array<int, 2> ends{};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
      return absl::InternalError("socketpair");
    }
    fd_ = ends[0];
    auto child = ChildProcess::Start("IdlePeersWriters", {}, ends[1]);
    ::close(ends[1]);
    if (!child.ok()) return child.status();
    child_ = *std::move(child);
    return Ask({flavour.name, std::to_string(count)});
  }
  absl::Status Write(size_t first, size_t last, const Hub& hub) {
    const uint64_t base = hub.node.memory.address();
    if (fd_ < 0) return here_.Write(first, last, hub.metadata, base);
    return Ask({std::to_string(first), std::to_string(last), hub.metadata, std::to_string(base)});
  }

  // The other side of Ask.
  static void Serve(int fd) {
    Writers writers;
    for (;;) {
      const auto asked = ReceiveFields(fd);
      if (!asked.ok()) return;
      const Fields& what = *asked;
      const absl::Status done = what.size() == 2
                                    ? writers.Create(FlavourNamed(what[0]), std::stoul(what[1]))
                                    : writers.Write(std::stoul(what[0]), std::stoul(what[1]),
                                                    what[2], std::stoull(what[3]));
      SendFields(fd, {std::string(done.ToString())}).IgnoreError();
    }
  }

 private:
  static Flavour FlavourNamed(const std::string& name) {
    for (Flavour& flavour : Flavours()) {
      if (flavour.name == name) return std::move(flavour);
    }
    return {};
  }
  absl::Status Ask(const Fields& what) const {
    if (absl::Status sent = SendFields(fd_, what); !sent.ok()) return sent;
    const auto answer = ReceiveFields(fd_);
    if (!answer.ok()) return answer.status();
    return answer->front() == "OK" ? absl::OkStatus() : absl::InternalError(answer->front());
  }

  Writers here_;
  ChildProcess child_;
  int fd_ = -1;
};

// As many descriptors as the system lets a process have. How many.
rlim_t TakeAllDescriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur;
}

KVXFER_CHILD(IdlePeersWriters) {
  TakeAllDescriptors();
  WritersApart::Serve(std::stoi(arguments.back()));
  return 0;
}

// Takes what so many have told it.
void HearFrom(size_t writers, const Hub& hub) {
  for (size_t i = 0; i < writers; ++i) ASSERT_OK(hub.node.agent->WaitNotification(kAmple));
}

class IdlePeers : public ::testing::TestWithParam<Flavour> {};

TEST_P(IdlePeers, TakeLittleMemory) {
  SetLogLevel(LogLevel::kError);  // that a peer goes is no news here
  const Flavour flavour = GetParam();
  // Agents that use the stand-in for a GPU take long to begin.
  const size_t peers = flavour.memory == MemoryType::kCuda ? 8 : 32;
  const size_t all = kFirst + peers;
  // Every writer has another hub before, so that what it has once is there too.
  ASSERT_OK_AND_ASSIGN(const Hub other, Hub::Create(flavour, "other"));
  ASSERT_OK_AND_ASSIGN(const Hub hub, Hub::Create(flavour, "hub"));
  WritersApart writers;
  ASSERT_OK(writers.Create(flavour, all));
  ASSERT_OK(writers.Write(0, all, other));
  ASSERT_OK(writers.Write(0, kFirst, hub));
  HearFrom(all, other);
  HearFrom(kFirst, hub);
  const uint64_t before = BytesInUse();
  ASSERT_OK(writers.Write(kFirst, all, hub));
  HearFrom(peers, hub);
  const size_t sides = flavour.between_processes() ? 1 : 2;
  const double most = kMostBytes + (sides == 2 ? kOfTestDevices - kNotSeen : 0);
  double each = 0;
  // What is on its way comes and goes first.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    each = (static_cast<double>(BytesInUse()) - static_cast<double>(before)) /
           static_cast<double>(peers * sides);
    return each <= most;
  }));
  std::printf("%s: %.1f KiB for each idle peer\n", flavour.name.c_str(), each / 1024);
}

INSTANTIATE_TEST_SUITE_P(Over, IdlePeers, ::testing::ValuesIn(Flavours()), FlavourName);

// How often threads of this process have slept and were woken.
uint64_t WakeUps() {
  uint64_t all = 0;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(thread.path() / "status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("voluntary_ctxt_switches:")) continue;
      all += std::stoull(line.substr(line.find(':') + 1));
    }
  }
  return all;
}

double CpuSeconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

class IdlePeersSoak : public ::testing::TestWithParam<Flavour> {};

TEST_P(IdlePeersSoak, AThousandTakeLittleTime) {
  constexpr size_t kMany = 1000;
  constexpr double kMostPercent = 1;
  const std::chrono::seconds watched(20);
  if (TakeAllDescriptors() < 15 * kMany) GTEST_SKIP() << "a process may have too few descriptors";
  SetLogLevel(LogLevel::kError);
  const Flavour flavour = GetParam();
  ASSERT_OK_AND_ASSIGN(const Hub hub, Hub::Create(flavour, "hub"));
  WritersApart writers;
  ASSERT_OK(writers.Create(flavour, kMany));
  ASSERT_OK(writers.Write(0, kMany, hub));
  HearFrom(kMany, hub);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const double cpu = CpuSeconds();
  const uint64_t wake_ups = WakeUps();
  std::this_thread::sleep_for(watched);
  const double seconds = static_cast<double>(watched.count());
  const double percent = 100 * (CpuSeconds() - cpu) / seconds;
  std::printf("%s: %.2f %% of a CPU and %.1f wake-ups a second for %zu idle peers\n",
              flavour.name.c_str(), percent, static_cast<double>(WakeUps() - wake_ups) / seconds,
              kMany);
  EXPECT_LE(percent, kMostPercent);
}

INSTANTIATE_TEST_SUITE_P(Over, IdlePeersSoak,
                         ::testing::Values(PlainFlavour("Tcp"), PlainFlavour("ShmMapped")),
                         FlavourName);

}  // namespace
}  // namespace kvxfer::testing
