#include "src/core/base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <csignal>
#include <string>

namespace kvxfer {
namespace {

sigset_t Mask() {
  sigset_t mask;
  pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  return mask;
}

TEST(StartThread, HasItsNameAndTakesNoSignalsButFaults) {
  std::array<char, 16> name{};
  sigset_t mask;
  sigemptyset(&mask);
  std::thread thread = StartThread("kvxfer-test", [&] {
    pthread_getname_np(pthread_self(), name.data(), name.size());
    mask = Mask();
  });
  thread.join();
  EXPECT_EQ(std::string(name.data()), "kvxfer-test");
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD, SIGALRM}) {
    EXPECT_TRUE(sigismember(&mask, signal)) << signal;
  }
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF}) {
    EXPECT_FALSE(sigismember(&mask, signal)) << signal;
  }
}

TEST(StartThread, LeavesTheMaskOfWhoStartsIt) {
  sigset_t usr2;
  sigemptyset(&usr2);
  sigaddset(&usr2, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &usr2, nullptr);
  StartThread("kvxfer-test", [] {}).join();
  sigset_t mask = Mask();
  EXPECT_TRUE(sigismember(&mask, SIGUSR2));
  EXPECT_FALSE(sigismember(&mask, SIGTERM));
  pthread_sigmask(SIG_UNBLOCK, &usr2, nullptr);
  StartThread("kvxfer-test", [] {}).join();
  mask = Mask();
  EXPECT_FALSE(sigismember(&mask, SIGUSR2));
}

}  // namespace
}  // namespace kvxfer
