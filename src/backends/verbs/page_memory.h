// Memory in whole pages, for what is registered with devices.

#ifndef KVXFER_BACKENDS_VERBS_PAGE_MEMORY_H_
#define KVXFER_BACKENDS_VERBS_PAGE_MEMORY_H_

#include <cstddef>
#include <memory>
#include <new>

namespace kvxfer::verbs {

inline constexpr std::align_val_t kPageAlignment{4096};

struct FreePages {
  void operator()(std::byte* pages) const { ::operator delete(pages, kPageAlignment); }
};
using PageMemory = std::unique_ptr<std::byte, FreePages>;

// Null: there is no memory.
inline PageMemory NewPages(size_t bytes) {
  return PageMemory(static_cast<std::byte*>(::operator new(bytes, kPageAlignment, std::nothrow)));
}

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PAGE_MEMORY_H_
