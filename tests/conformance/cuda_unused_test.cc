// Who has no use for GPU memory has no CUDA driver loaded, though there is one: it costs start-up
// time, memory on each GPU, and the right to fork.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/child_process.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

bool DriverIsLoaded() { return dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) != nullptr; }

// A process of its own: cases with GPU memory leave the driver loaded behind them.
KVXFER_CHILD(MovesHostMemory) {
  constexpr Shape kShape{.block_bytes = 4096, .ids = 16};
  AgentOptions options;  // every backend that there is
  options.name = "a";
  auto a = Node::Create(options, MemoryType::kMapped, kShape.memory_bytes());
  options.name = "b";
  auto b = Node::Create(options, MemoryType::kAttached, kShape.memory_bytes());
  CHILD_EXPECT(a.ok() && b.ok());
  CHILD_EXPECT(Introduce(*a->agent, *b->agent).ok());
  CHILD_EXPECT(Introduce(*b->agent, *a->agent).ok());
  const BlockSet blocks(kShape, a->memory.address(), b->memory.address());
  const auto transfer = blocks.Write(*a->agent, "b", Unhurried());
  CHILD_EXPECT(transfer.ok() && transfer->Wait(kAmple).ok());
  CHILD_EXPECT(!DriverIsLoaded());
  // There is one; else this says nothing.
  CHILD_EXPECT(TestMemory::Allocate(MemoryType::kCuda, 4096).ok());
  CHILD_EXPECT(DriverIsLoaded());
  return 0;
}

TEST(CudaUnused, NothingOfItIsLoaded) { EXPECT_EQ(RunChild("MovesHostMemory", {}, kAmple), 0); }

}  // namespace
}  // namespace kvxfer::testing
