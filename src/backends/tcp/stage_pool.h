// Buffers for what rails read and have not passed on. A rail holds one while there are bytes in it,
// so that a thousand idle connections hold none.
//
// Thread-safety: none; its owner calls it, the driver or a data thread.

#ifndef KVXFER_BACKENDS_TCP_STAGE_POOL_H_
#define KVXFER_BACKENDS_TCP_STAGE_POOL_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "src/backends/tcp/frames.h"

namespace kvxfer::tcp {

class StagePool {
 public:
  // Read beyond what the next step needs.
  static constexpr size_t kReadAhead = 8 * 1024;
  static constexpr size_t kBytes = kMaxFrameRuns * kWireRunBytes + kReadAhead;
  using Buffer = std::unique_ptr<std::byte[]>;  // of kBytes

  Buffer Take() {
    if (spare_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kBytes);
    Buffer buffer = std::move(spare_.back());
    spare_.pop_back();
    return buffer;
  }
  void Give(Buffer buffer) {
    if (spare_.size() < kMaxSpare) spare_.push_back(std::move(buffer));
  }

 private:
  // What rails that receive at once need; those of a burst are freed.
  static constexpr size_t kMaxSpare = 64;

  std::vector<Buffer> spare_;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_STAGE_POOL_H_
