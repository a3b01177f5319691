// A forked child keeps none of its parent's descriptors, and closes none of its own by mistake.
#include "src/core/base/own_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

namespace kvxfer {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

int OpenNull() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

// What `body` returns in a forked child.
template <typename Body>
int InForkedChild(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OwnFdTest, OwnsMovesAndCloses) {
  OwnFd none;
  EXPECT_FALSE(none.valid());
  EXPECT_FALSE(OwnFd(-1).valid());
  OwnFd a = OwnFd::Open(OpenNull);
  ASSERT_TRUE(a.valid());
  const int number = a.get();
  OwnFd b = std::move(a);
  EXPECT_FALSE(a.valid());  // NOLINT(bugprone-use-after-move): empty, it promises
  EXPECT_EQ(b.get(), number);
  EXPECT_TRUE(IsOpen(number));
  b.Reset();
  EXPECT_FALSE(IsOpen(number));
  EXPECT_FALSE(b.valid());
}

TEST(OwnFdTest, OpenKeepsTheErrno) {
  const OwnFd fd = OwnFd::Open([] { return open("/nowhere/at/all", O_RDONLY); });
  const int error = errno;
  EXPECT_FALSE(fd.valid());
  EXPECT_EQ(error, ENOENT);
}

TEST(OwnFdTest, AForkedChildHasNoneOfThemAndTheParentKeepsAll) {
  std::vector<OwnFd> all;
  all.reserve(200);
  for (int i = 0; i < 200; ++i) all.push_back(OwnFd::Open(OpenNull));
  const OwnFd taken(OpenNull());
  const int other = OpenNull();
  const int left = InForkedChild([&] {
    int open = 0;
    for (const OwnFd& fd : all) open += IsOpen(fd.get());
    return open + IsOpen(taken.get()) + (IsOpen(other) ? 100 : 0);
  });
  EXPECT_EQ(left, 100);  // none but the one that no OwnFd owns
  for (const OwnFd& fd : all) EXPECT_TRUE(IsOpen(fd.get()));
  EXPECT_TRUE(IsOpen(taken.get()));
  close(other);
}

TEST(OwnFdTest, AChildsDescriptorOfTheSameNumberIsNotTheParents) {
  OwnFd parents = OwnFd::Open(OpenNull);
  const int failed = InForkedChild([&] {
    const OwnFd own = OwnFd::Open(OpenNull);  // the lowest number that is free
    if (own.get() != parents.get()) return 1;
    parents.Reset();
    if (!IsOpen(own.get())) return 2;
    // And the child's child has it no more.
    return InForkedChild([&] { return IsOpen(own.get()) ? 1 : 0; }) == 0 ? 0 : 3;
  });
  EXPECT_EQ(failed, 0);
}

TEST(OwnFdTest, ClosingEndsTheConnectionThoughAChildLives) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe2(ends.data(), O_CLOEXEC), 0);
  const int reader = ends[0];
  OwnFd writer(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    for (;;) pause();
  }
  writer.Reset();
  char byte = 0;
  EXPECT_EQ(read(reader, &byte, 1), 0);  // would block for ever were a writer left
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(reader);
}

}  // namespace
}  // namespace kvxfer
