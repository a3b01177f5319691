// Handles that close themselves.

#ifndef KVXFER_BACKENDS_SHM_HANDLES_H_
#define KVXFER_BACKENDS_SHM_HANDLES_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "src/core/base/own_fd.h"
#include "src/core/base/strings.h"

namespace kvxfer::shm {

using UniqueFd = OwnFd;

// A range of memory from mmap.
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

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_HANDLES_H_
