// Want of memory, descriptors and address space, and the wrong process, are a Status and no crash.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/open_files.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;
constexpr uint64_t kRegionBytes = 64 * 1024;

TEST(BadMemory, MoreThanThereIs) {
  EXPECT_TRUE(Fails(HostBuffer::Allocate(0), StatusCode::kInvalidArgument));
  EXPECT_TRUE(Fails(HostBuffer::Allocate(size_t{1} << 60), StatusCode::kResourceExhausted));
  EXPECT_TRUE(Fails(HostBuffer::Allocate(SIZE_MAX), StatusCode::kResourceExhausted));
}

// The child of a fork shares nothing with the agent's threads: each of its calls is refused.
TEST(BadFork, ChildsCallsAreRefused) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(TcpFlavour(), kRegionBytes));
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer before, blocks.Write(*pair.a.agent, "b", Unhurried()));
  ASSERT_OK(before.Wait(kAmple));
  // In the child these would reach for the queue and the descriptor that are the parent's.
  ASSERT_OK_AND_ASSIGN(const Transfer told,
                       pair.b.agent->Notify("a", "for the parent", Unhurried()));
  ASSERT_OK(told.Wait(kAmple));
  std::atomic<uint32_t> ready{0};
  TransferOptions held_back = Unhurried(NotifyOrder::kAnyOrder);
  held_back.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer held, blocks.Write(*pair.a.agent, "b", held_back));
  std::atomic<int> callbacks{0};
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto refused = [](const absl::Status& status) {
      return status.code() == StatusCode::kFailedPrecondition &&
             status.message().find("fork") != absl::string_view::npos;
    };
    int bad = 0;
    bad |= refused(blocks.Write(*pair.a.agent, "b").status()) ? 0 : 1;
    bad |= refused(pair.a.agent->Notify("b", "x").status()) ? 0 : 2;
    bad |= refused(pair.a.agent->WaitNotification(milliseconds(1)).status()) ? 0 : 4;
    bad |=
        refused(pair.a.agent->RegisterMemory(pair.a.memory.span(), Access::kNone).status()) ? 0 : 8;
    bad |= refused(pair.a.agent->Metadata().status()) ? 0 : 16;
    bad |= pair.a.agent->PollNotification().has_value() ? 32 : 0;
    bad |= refused(pair.a.agent->Quiesce({}, milliseconds(1)).status()) ? 0 : 64;
    bad |= pair.a.agent->PollPeerEvent().has_value() ? 128 : 0;
    pair.a.agent->OnNotification([](const Notification&) { _exit(1); });
    pair.a.agent->OnPeerEvent([](const PeerEvent&) { _exit(1); });
    before.OnEnd([](const Transfer&) { _exit(1); });
    held.OnEnd([](const Transfer&) { _exit(1); });
    _exit(bad);
  }
  int status = 0;
  ASSERT_TRUE(Eventually(kAmple, [&] { return waitpid(child, &status, WNOHANG) == child; }));
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "bits of the calls that were not refused";
  // The parent's agent has not noticed: what waits for it, and the descriptor that says so.
  pollfd readable{.fd = pair.a.agent->notification_fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&readable, 1, 0), 1);
  EXPECT_TRUE(pair.a.agent->PollPeerEvent().has_value());
  ASSERT_OK_AND_ASSIGN(const Notification waits, pair.a.agent->WaitNotification(kAmple));
  EXPECT_EQ(waits.payload, "for the parent");
  held.OnEnd([&](const Transfer&) { ++callbacks; });
  ready.store(1, std::memory_order_release);
  EXPECT_TRUE(Eventually(kAmple, [&] { return callbacks == 1; }));
  ASSERT_OK_AND_ASSIGN(const Transfer after, blocks.Write(*pair.a.agent, "b", Unhurried()));
  EXPECT_OK(after.Wait(kAmple));
}

// At the limit of descriptors, creating fails with the reason; connecting ends in time, and works
// once there are descriptors again.
KVXFER_CHILD(DescriptorLimit) {
  absl::StatusOr<Pair> pair = Pair::Create(TcpFlavour(), kRegionBytes);
  CHILD_EXPECT(pair.ok());
  const BlockSet blocks({}, pair->a.memory.address(), pair->b.memory.address());
  std::optional<NoDescriptors> no_descriptors(std::in_place);
  const absl::Status none = Agent::Create(OptionsFor(TcpFlavour(), "c")).status();
  std::fprintf(stderr, "create: %s\n", none.ToString().c_str());
  CHILD_EXPECT(!none.ok() && !none.message().empty());
  CHILD_EXPECT(!HostBuffer::Allocate(4096).ok());
  TransferOptions brief = Unhurried();
  brief.deadline = milliseconds(300);
  absl::StatusOr<Transfer> transfer = blocks.Write(*pair->a.agent, "b", brief);
  const absl::Status end = transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  std::fprintf(stderr, "write: %s\n", end.ToString().c_str());
  CHILD_EXPECT(!end.ok());
  no_descriptors.reset();
  CHILD_EXPECT(Eventually(kAmple, [&] {
    const absl::StatusOr<Transfer> again = blocks.Write(*pair->a.agent, "b", Telling("again"));
    return again.ok() && again->Wait(kAmple).ok();
  }));
  return 0;
}

TEST(BadResources, DescriptorLimit) { EXPECT_EQ(RunChild("DescriptorLimit", {}, kAmple), 0); }

#if !KVXFER_SANITIZED  // a sanitizer's shadow needs the address space
// Without address space left, allocation and registration fail or succeed, and nothing dies.
KVXFER_CHILD(MemoryLimit) {
  absl::StatusOr<Node> node =
      Node::Create(OptionsFor(TcpFlavour(), "a"), TcpFlavour().memory, kRegionBytes);
  CHILD_EXPECT(node.ok());
  const rlimit limit{.rlim_cur = 512u << 20, .rlim_max = 512u << 20};
  CHILD_EXPECT(setrlimit(RLIMIT_AS, &limit) == 0);
  const absl::Status none = HostBuffer::Allocate(size_t{1} << 30).status();
  std::fprintf(stderr, "allocate: %s\n", none.ToString().c_str());
  CHILD_EXPECT(none.code() == StatusCode::kResourceExhausted && !none.message().empty());
  CHILD_EXPECT(!TestMemory::Allocate(MemoryType::kAttached, size_t{1} << 30).ok());
  CHILD_EXPECT(node->agent->RegisterMemory(node->memory.span(), Access::kReadWrite).ok());
  CHILD_EXPECT(HostBuffer::Allocate(4096).ok());
  return 0;
}

TEST(BadResources, MemoryLimit) { EXPECT_EQ(RunChild("MemoryLimit", {}, kAmple), 0); }
#endif

}  // namespace
}  // namespace kvxfer::testing
