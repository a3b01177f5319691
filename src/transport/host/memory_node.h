// Which NUMA node memory is on.
#ifndef KVXFER_TRANSPORT_HOST_MEMORY_NODE_H_
#define KVXFER_TRANSPORT_HOST_MEMORY_NODE_H_

#include <cstddef>
#include <optional>

namespace kvxfer {

// The node of most pages of host memory, from a sample of them; pages that were never touched are
// nowhere. Empty: there is no such node, or the kernel does not say (Docker's default profile
// forbids the question, move_pages(2), without SYS_NICE). Thread-safe; some microseconds.
std::optional<int> NodeOfMemory(const void* data, size_t bytes);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_MEMORY_NODE_H_
