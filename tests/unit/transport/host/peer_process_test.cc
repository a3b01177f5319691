#include "src/transport/host/peer_process.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "src/core/base/host_identity.h"

namespace kvxfer {
namespace {

TEST(PeerProcessTest, IsBoundToPidAndStartTime) {
  const auto self = static_cast<uint32_t>(getpid());
  const auto started = StartTime(self);
  ASSERT_TRUE(started.ok()) << started.status();
  const auto held = PeerProcess::Open(ReadHostIdentity(), self, *started);
  ASSERT_TRUE(held.ok()) << held.status();
  EXPECT_FALSE(held->Exited());
  // Expect that the same number with another start time is another process.
  EXPECT_EQ(PeerProcess::Open(ReadHostIdentity(), self, *started + 1).status().code(),
            absl::StatusCode::kNotFound);

  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const auto other = PeerProcess::Open(ReadHostIdentity(), static_cast<uint32_t>(child), 0);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_FALSE(other->Exited());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(other->Exited());
  EXPECT_EQ(PeerProcess::Open(ReadHostIdentity(), static_cast<uint32_t>(child), 0).status().code(),
            absl::StatusCode::kNotFound);
}

// In a process whose /proc shows nobody but itself, as `hidepid` does with others' processes.
// 0: the process `pid` could be held; 1: not; 2: such a /proc cannot be made here.
int HoldUnseen(uint32_t pid, uint64_t started) {
  const HostIdentity self = ReadHostIdentity();
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", "/proc", "tmpfs", 0, nullptr) != 0 ||
      symlink(std::to_string(getpid()).c_str(), "/proc/self") != 0) {
    return 2;
  }
  return PeerProcess::Open(self, pid, started).ok() ? 0 : 1;
}

TEST(PeerProcessTest, AHiddenEntryOfProcProvesNothing) {
  const auto self = static_cast<uint32_t>(getpid());
  const auto started = StartTime(self);
  ASSERT_TRUE(started.ok()) << started.status();
  const pid_t child = fork();
  if (child == 0) _exit(HoldUnseen(self, *started));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) GTEST_SKIP() << "mounting over /proc (needs root)";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvxfer
