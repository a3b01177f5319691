// Finds the NUMA node that memory is on.
#ifndef KVXFER_TRANSPORT_HOST_MEMORY_NODE_H_
#define KVXFER_TRANSPORT_HOST_MEMORY_NODE_H_

#include <cstddef>
#include <optional>

namespace kvxfer {

// The node that holds most pages of host memory, judged from a sample of up to 64 pages. Pages that
// were never touched are on no node. nullopt: there is no such node, or the kernel does not say
// (Docker's default profile forbids move_pages(2) without CAP_SYS_NICE).
// Thread-safety: any thread. Takes some microseconds.
std::optional<int> NodeOfMemory(const void* data, size_t bytes);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_MEMORY_NODE_H_
