// A range of memory from mmap, which unmaps itself.
//
// Thread-safety: none.

#ifndef KVXFER_TRANSPORT_HOST_MAPPING_H_
#define KVXFER_TRANSPORT_HOST_MAPPING_H_

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace kvxfer {

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, size_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_MAPPING_H_
