#include <dirent.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <csignal>
#include <fstream>
#include <future>
#include <map>
#include <string>

#include "kvxfer/agent.h"
#include "kvxfer/memory.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

// Of this process's threads with a name of kvxfer's: the signals that each one has blocked.
std::multimap<std::string, uint64_t> BlockedSignals() {
  std::multimap<std::string, uint64_t> result;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* const task = readdir(tasks)) {
    std::ifstream status("/proc/self/task/" + std::string(task->d_name) + "/status");
    std::string line;
    std::string name;
    while (std::getline(status, line)) {
      if (line.starts_with("Name:\t")) name = line.substr(6);
      if (line.starts_with("SigBlk:\t") && name.starts_with("kvxfer-")) {
        result.emplace(name, std::stoull(line.substr(8), nullptr, 16));
      }
    }
  }
  closedir(tasks);
  return result;
}

// The application decides which of its threads handles SIGTERM.
TEST(OwnThreads, HaveNamesAndTakeNoSignals) {
  AgentOptions options;
  options.backends = {"tcp"};
  options.backend["tcp"]["data_threads"] = "2";
  options.name = "here";
  ASSERT_OK_AND_ASSIGN(auto here, Agent::Create(options));
  options.name = "there";
  ASSERT_OK_AND_ASSIGN(auto there, Agent::Create(options));
  ASSERT_OK_AND_ASSIGN(auto from, HostBuffer::Allocate(1 << 20));
  ASSERT_OK_AND_ASSIGN(auto to, HostBuffer::Allocate(1 << 20));
  ASSERT_OK(here->RegisterMemory(from.span(), Access::kReadWrite).status());
  ASSERT_OK(there->RegisterMemory(to.span(), Access::kReadWrite).status());
  ASSERT_OK_AND_ASSIGN(auto metadata, there->Metadata());
  ASSERT_OK_AND_ASSIGN(const std::string peer, here->AddPeer(metadata));
  const Descriptor mine{.address = reinterpret_cast<uintptr_t>(from.data()), .bytes = 1 << 20};
  const Descriptor theirs{.address = reinterpret_cast<uintptr_t>(to.data()), .bytes = 1 << 20};
  ASSERT_OK_AND_ASSIGN(auto transfer, here->Write(peer, DescriptorBlocks{.local = {&mine, 1},
                                                                         .remote = {&theirs, 1}}));
  ASSERT_OK(transfer.Wait(testing::kAmple));

  std::multimap<std::string, uint64_t> threads;
  const Time end = Now() + testing::kAmple;
  do {  // a thread names itself when it begins
    testing::Pause();
    threads = BlockedSignals();
  } while ((threads.count("kvxfer-agent") < 2 || threads.count("kvxfer-tcp") < 4) && Now() < end);
  EXPECT_GE(threads.count("kvxfer-agent"), 2u);
  EXPECT_GE(threads.count("kvxfer-tcp"), 4u);
  for (const auto& [name, blocked] : threads) {
    EXPECT_NE(blocked & (uint64_t{1} << (SIGTERM - 1)), 0u) << name;
    EXPECT_EQ(blocked & (uint64_t{1} << (SIGSEGV - 1)), 0u) << name;
  }
}

// Callbacks are the application's, and what they start inherits their mask, across exec too. Here a
// thread that has signals blocked, the agent's own, is the one that starts their thread.
TEST(OwnThreads, CallbacksHaveTheMaskOfWhoMadeTheAgent) {
  AgentOptions options;
  options.backends = {"loopback"};
  options.name = "here";
  ASSERT_OK_AND_ASSIGN(auto here, Agent::Create(options));
  options.name = "there";
  ASSERT_OK_AND_ASSIGN(auto there, Agent::Create(options));
  std::promise<sigset_t> mask;
  there->OnNotification([&](const Notification& /*notification*/) {
    sigset_t now;
    pthread_sigmask(SIG_SETMASK, nullptr, &now);
    mask.set_value(now);
  });
  ASSERT_OK_AND_ASSIGN(auto metadata, there->Metadata());
  ASSERT_OK_AND_ASSIGN(const std::string peer, here->AddPeer(metadata));
  ASSERT_OK(here->Notify(peer, "request 7").status());
  auto in_callback = mask.get_future();
  ASSERT_EQ(in_callback.wait_for(testing::kAmple), std::future_status::ready);
  const sigset_t seen = in_callback.get();
  sigset_t own;
  pthread_sigmask(SIG_SETMASK, nullptr, &own);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD, SIGUSR1}) {
    EXPECT_EQ(sigismember(&seen, signal), sigismember(&own, signal)) << signal;
  }
}

}  // namespace
}  // namespace kvxfer
