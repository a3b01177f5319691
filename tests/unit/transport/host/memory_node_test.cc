// Where memory is, as far as the kernel says.
#include "src/transport/host/memory_node.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <filesystem>
#include <string>
#include <vector>

namespace kvxfer {
namespace {

TEST(MemoryNode, IsOneThatTheHostHas) {
  for (const size_t bytes : {1u, 100u, 1u << 20}) {
    const std::vector<std::byte> memory(bytes, std::byte{1});
    const std::optional<int> node = NodeOfMemory(memory.data(), memory.size());
    if (!node) GTEST_SKIP() << "the kernel does not say on which node memory is (move_pages)";
    EXPECT_TRUE(std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(*node)));
  }
}

TEST(MemoryNode, MemoryThatNobodyTouchedIsNowhere) {
  constexpr size_t kBytes = 1 << 20;
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(NodeOfMemory(memory, kBytes), std::nullopt);
  ::munmap(memory, kBytes);
  EXPECT_EQ(NodeOfMemory(memory, kBytes), std::nullopt);
  EXPECT_EQ(NodeOfMemory(nullptr, 0), std::nullopt);
}

}  // namespace
}  // namespace kvxfer
