// What closes memory that is not needed any more: a thread of its own, in order, and never in a
// forked child.
#include "src/cuda/closer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer::cuda {
namespace {

using kvxfer::testing::Eventually;
using kvxfer::testing::kAmple;

bool NothingLeft() {
  return Eventually(kAmple, [] { return !Closing(); });
}

TEST(CudaCloser, ClosesInOrderOnAThreadOfItsOwn) {
  for (int round = 0; round < 3; ++round) {
    std::vector<int> order;
    std::atomic<bool> elsewhere{true};
    const std::thread::id here = std::this_thread::get_id();
    for (int i = 0; i < 20; ++i) {
      CloseLater([&, i] {
        if (std::this_thread::get_id() == here) elsewhere = false;
        order.push_back(i);
      });
    }
    ASSERT_TRUE(NothingLeft());
    EXPECT_TRUE(elsewhere);
    ASSERT_EQ(order.size(), 20u);
    for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
}

// Expect that nobody but what comes behind it waits for one that takes long.
TEST(CudaCloser, HandingOverDoesNotWait) {
  std::atomic<bool> go{false};
  std::atomic<int> closed{0};
  CloseLater([&] { go.wait(false); });
  CloseLater([&] { ++closed; });
  EXPECT_TRUE(Closing());
  EXPECT_EQ(closed, 0);
  go = true;
  go.notify_all();
  ASSERT_TRUE(NothingLeft());
  EXPECT_EQ(closed, 1);
}

TEST(CudaCloser, AForkedChildClosesNothingOfItsParent) {
  std::atomic<bool> go{false};
  CloseLater([&] { go.wait(false); });
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    bool closed = false;
    CloseLater([&] { closed = true; });
    _exit(closed || Closing() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  go = true;
  go.notify_all();
  EXPECT_TRUE(NothingLeft());
}

}  // namespace
}  // namespace kvxfer::cuda
