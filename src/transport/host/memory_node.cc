#include "src/transport/host/memory_node.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>

namespace kvxfer {

std::optional<int> NodeOfMemory(const void* data, size_t bytes) {
  constexpr size_t kSamples = 64;
  std::array<void*, kSamples> pages{};
  std::array<int, kSamples> nodes{};
  const size_t count = std::min(kSamples, bytes);
  for (size_t i = 0; i < count; ++i) {
    // move_pages(2) with null `nodes` only reports the nodes; its parameter is not const all the
    // same.
    pages[i] = static_cast<std::byte*>(const_cast<void*>(data)) + bytes / count * i;
  }
  if (::syscall(SYS_move_pages, 0, count, pages.data(), nullptr, nodes.data(), 0) != 0) {
    return std::nullopt;
  }
  std::map<int, size_t> pages_of;  // key: a node, or a negative errno
  for (size_t i = 0; i < count; ++i) ++pages_of[nodes[i]];
  // A single node must hold more than half of the sampled pages.
  for (const auto& [node, on_it] : pages_of) {
    if (node >= 0 && 2 * on_it > count) return node;
  }
  return std::nullopt;
}

}  // namespace kvxfer
