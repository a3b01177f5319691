// The shm backend with a peer that runs another program, or beside a process that was forked and
// holds copies of its descriptors.
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "kvxfer/memory.h"
#include "tests/unit/backends/shm/peer_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

// In the peer: describes itself, and greets the one that connects; then waits for a word.
void GreetOne(int commands, Side& side, const Side::Region regions[2]) {
  Child::Tell(commands, Describe(side, regions));
  if (!Drive({&side}, [&] { return side.endpoints.size() == 1; })) _exit(1);
  side.endpoints.front()->Authorize();
  Send(side.endpoints.front().get(), "hello");
  Child::HearFrom(commands);
}

TEST(ShmProcess, ATargetThatExecsIsDown) {
  const Child child([](int fd) {
    Side side;
    const HostBuffer shared = *HostBuffer::Allocate(4096);
    const Side::Region regions[2] = {side.Register(shared.span()), side.Register(shared.span())};
    GreetOne(fd, side, regions);
    execlp("sleep", "sleep", "60", nullptr);
  });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_EQ(write(child.fd(), "x", 1), 1);
  ASSERT_TRUE(Drive({&pair.side}, [&] { return !pair.side.down.empty(); }));
  EXPECT_TRUE(Says(pair.side.down.at(pair.out), "exited or dropped"));
}

// A target that runs another program while a process that it has made, without fork handlers,
// holds its socket.
void ExecBesideACopy(int fd) {
  Side side;
  std::vector<std::byte> plain(4096);
  const Side::Region region = side.Register({.data = plain.data(), .bytes = plain.size()});
  const Side::Region again = side.Register({.data = plain.data(), .bytes = plain.size()});
  const Side::Region regions[2] = {{nullptr, region.remote, region.key},
                                   {nullptr, again.remote, again.key}};
  GreetOne(fd, side, regions);
  const pid_t parent = getpid();
  if (_Fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);  // it went before that
    alarm(60);
    for (;;) pause();
  }
  execlp("sleep", "sleep", "60", nullptr);
  _exit(1);
}

TEST(ShmProcess, NothingMovesOnceTheTargetRunsAnotherProgram) {
  const Child child(ExecBesideACopy);
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_TRUE(pair.Import(1).ok());
  const Piece all = pair.All(1);
  ASSERT_TRUE(pair.Do(OpKind::kWrite, {&all, 1}).ok());
  ASSERT_EQ(write(child.fd(), "x", 1), 1);
  const Time end = Now() + kPatience;
  std::string program;
  while (program != "sleep" && Now() < end) {
    std::ifstream("/proc/" + std::to_string(child.pid()) + "/comm") >> program;
  }
  ASSERT_EQ(program, "sleep");
  for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
    const absl::Status moved = pair.Do(kind, {&all, 1});
    EXPECT_EQ(moved.code(), absl::StatusCode::kUnavailable) << moved;
    EXPECT_TRUE(Says(moved, "exec")) << moved;
  }
  EXPECT_TRUE(pair.side.down.empty());  // the copy of the socket hides it
}

TEST(ShmProcess, AForkedChildOfTheInitiatorHoldsNothingUp) {
  const Child child([](int fd) { Serve(fd, 4096); });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  // Keeps a copy of every descriptor: no fork handler runs.
  const pid_t copy = _Fork();
  if (copy == 0) {
    alarm(60);
    for (;;) pause();
  }
  pair.out->Shutdown(absl::CancelledError("over"));
  const Time end = Now() + kPatience;
  std::string downs;
  do {
    downs = child.Ask("downs");
  } while (downs[0] == '0' && Now() < end);
  EXPECT_NE(downs.find("over"), std::string::npos) << downs;
  kill(copy, SIGKILL);
  waitpid(copy, nullptr, 0);
}

}  // namespace
}  // namespace kvxfer::shm_test
