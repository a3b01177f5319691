// An allocator for containers of nodes (map, set, list) that keeps what it gets back, up to a few
// nodes, for the next ones: a container that goes between empty and a few entries allocates
// nothing.
//
// Each container has its own spare nodes; a copy begins without any. All compare equal, for what
// one has allocated any other may free. Under AddressSanitizer nothing is kept, so that the use of
// a node that is gone is seen. Thread-safety: as the container's.

#ifndef KVXFER_CORE_BASE_KEEPING_ALLOCATOR_H_
#define KVXFER_CORE_BASE_KEEPING_ALLOCATOR_H_

#include <array>
#include <cstddef>
#include <memory>
#include <type_traits>

#if defined(__SANITIZE_ADDRESS__)
#define KVXFER_KEEPS_NODES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVXFER_KEEPS_NODES 0
#endif
#endif
#ifndef KVXFER_KEEPS_NODES
#define KVXFER_KEEPS_NODES 1
#endif

namespace kvxfer {

template <typename T>
class KeepingAllocator {
 public:
  using value_type = T;
  using is_always_equal = std::true_type;
  static constexpr bool kKeeps = KVXFER_KEEPS_NODES != 0;
  static constexpr size_t kKept = 4;

  KeepingAllocator() = default;
  ~KeepingAllocator() {
    while (spares_ > 0) std::allocator<T>().deallocate(spare_[--spares_], 1);
  }
  KeepingAllocator(const KeepingAllocator& /*other*/) noexcept {}
  KeepingAllocator& operator=(const KeepingAllocator& /*other*/) noexcept { return *this; }
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor)
  KeepingAllocator(const KeepingAllocator<U>& /*other*/) noexcept {}

  T* allocate(size_t n) {
    return n == 1 && spares_ > 0 ? spare_[--spares_] : std::allocator<T>().allocate(n);
  }
  void deallocate(T* at, size_t n) noexcept {
    if (kKeeps && n == 1 && spares_ < kKept) {
      spare_[spares_++] = at;
    } else {
      std::allocator<T>().deallocate(at, n);
    }
  }
  bool operator==(const KeepingAllocator& /*other*/) const { return true; }

 private:
  std::array<T*, kKept> spare_;
  size_t spares_ = 0;
};

}  // namespace kvxfer

#undef KVXFER_KEEPS_NODES

#endif  // KVXFER_CORE_BASE_KEEPING_ALLOCATOR_H_
