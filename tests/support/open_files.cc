#include "tests/support/open_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "tests/support/scale.h"

#if KVXFER_ADDRESS_SANITIZER
#include <fcntl.h>

#include <mutex>

// UBSan asks through a pipe whether it can read the table of an object's virtual functions. Where
// it gets no pipe it reports an invalid object. So its pipes are above the limit; kvxfer makes none
// with this function.
extern "C" int pipe(int* ends) noexcept {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  rlimit now{};
  getrlimit(RLIMIT_NOFILE, &now);
  rlimit more = now;
  more.rlim_cur = more.rlim_max;
  setrlimit(RLIMIT_NOFILE, &more);
  const int result = pipe2(ends, 0);
  setrlimit(RLIMIT_NOFILE, &now);
  return result;
}
#endif

namespace kvxfer::testing {

size_t OpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

NoDescriptors::NoDescriptors() {
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
  // The lowest number that is free: all below are in use.
  const int lowest = dup(STDERR_FILENO);
  EXPECT_GE(lowest, 0);
  close(lowest);
  rlimit none = before_;
  none.rlim_cur = static_cast<rlim_t>(lowest);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
}

void NoDescriptors::TakeFreed() {
  do taken_.push_back(OwnFd::Open([] { return dup(STDERR_FILENO); }));
  while (taken_.back().valid());
}

NoDescriptors::~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

DescriptorLimit::DescriptorLimit(size_t most) {
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
  rlimit now = before_;
  now.rlim_cur = std::min<rlim_t>(most, before_.rlim_max);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &now), 0);
}

DescriptorLimit::~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

}  // namespace kvxfer::testing
