// GPU memory of tests as it is over a real driver: without an alias, looked at by copies.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "tests/support/child_process.h"
#include "tests/support/memory_view.h"
#include "tests/support/needs_stand_in.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/test_memory.h"

namespace kvxfer::testing {
namespace {

// Whether a process ends by reading there.
bool CrashesWhoReads(const volatile std::byte* at) {
  const pid_t child = fork();
  if (child == 0) {
    // Libraries that are loaded here, and sanitizers, would write reports.
    ::signal(SIGSEGV, SIG_DFL);
    ::signal(SIGBUS, SIG_DFL);
    static_cast<void>(*at);
    _exit(0);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSIGNALED(status);
}

// A process of its own: for the other cases the stand-in has its hooks.
KVXFER_CHILD(LooksByCopies) {
  ::setenv("KVXFER_TEST_NO_HOOKS", "1", 1);
  constexpr size_t kBytes = 100'001;
  auto made = TestMemory::Allocate(MemoryType::kCuda, kBytes);
  auto host = TestMemory::Allocate(MemoryType::kAttached, kBytes);
  CHILD_EXPECT(made.ok() && host.ok());
  CHILD_EXPECT(OverRealDriver());
  TestMemory gpu = *std::move(made);
  CHILD_EXPECT(IsCopiedMemory(gpu.address()) && !IsCopiedMemory(host->address()));
  CHILD_EXPECT(FirstNonZero(gpu.bytes()) == kNoMismatch);

  Pattern(1).Fill(gpu.bytes());
  CHILD_EXPECT(Pattern(1).Mismatch(gpu.bytes()) == kNoMismatch);
  // Parts that begin anywhere, and no byte beside them.
  FillWith(gpu.bytes().subspan(777, 1000), kPoison);
  CHILD_EXPECT(Pattern(1).Mismatch(gpu.bytes()) == 777);
  CHILD_EXPECT(Pattern(1).Mismatch(gpu.bytes().subspan(1777), 1777) == kNoMismatch);
  CHILD_EXPECT(Contains(gpu.bytes(), kPoison) && !Contains(gpu.bytes().first(777), kPoison));
  Pattern(1).Fill(host->bytes());
  CHILD_EXPECT(Digest(gpu.bytes()) != Digest(host->bytes()));
  FillWith(host->bytes().subspan(777, 1000), kPoison);
  CHILD_EXPECT(Digest(gpu.bytes()) == Digest(host->bytes()));

  CHILD_EXPECT(gpu.GuardsIntact());
  FillWith({gpu.data() + gpu.size(), 1}, kPoison);
  CHILD_EXPECT(!gpu.GuardsIntact());
  gpu.Clear();
  CHILD_EXPECT(FirstNonZero(gpu.bytes()) == kNoMismatch);
  // Whoever looks without a view sees nothing.
  CHILD_EXPECT(CrashesWhoReads(gpu.data()) && !CrashesWhoReads(host->data()));

  const uint64_t gone = gpu.address();
  gpu = TestMemory();
  CHILD_EXPECT(!IsCopiedMemory(gone));
  return 0;
}

TEST(CudaCopiedMemory, IsReadAndWrittenByViews) {
  EXPECT_EQ(RunChild("LooksByCopies", {}, kAmple), 0);
}

}  // namespace
}  // namespace kvxfer::testing
