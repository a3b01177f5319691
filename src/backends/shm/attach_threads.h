// Cross-memory attach in batches that several threads share.
//
// Thread-safety: one caller at a time.

#ifndef KVXFER_BACKENDS_SHM_ATTACH_THREADS_H_
#define KVXFER_BACKENDS_SHM_ATTACH_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/shm/attach.h"
#include "src/transport/host/copy_threads.h"

namespace kvxfer::shm {

// How much one thread copies before it looks at anything else: 0.3 to 0.6 ms. Small ops share one
// slice, because each copying system call comes with two more that check whether the peer is still
// there.
inline constexpr size_t kAttachedSliceBytes = 2 * 1024 * 1024;

class AttachThreads {
 public:
  explicit AttachThreads(uint32_t threads) : threads_(threads), shares_(threads) {}

  // Empties the batch. `waiting`: at least this many bytes are going to be moved; if it is small,
  // one thread takes all of them.
  void Begin(uint64_t waiting);
  // Returns how many of `bytes` it took from the front. 0: the batch is full.
  uint64_t Add(uint64_t local, uint64_t remote, uint64_t bytes);
  // As AttachBatch::Move, with all threads at once. Bytes that were moved after the first one that
  // could not be moved are not counted; they may be moved again.
  absl::StatusOr<size_t> Move(OpKind kind, uint32_t pid);

 private:
  CopyThreads threads_;
  std::vector<AttachBatch> shares_;
  std::vector<absl::StatusOr<size_t>> moved_;
  uint64_t share_bytes_ = 0;
  size_t allowed_ = 1;  // how many shares may be filled
  size_t filling_ = 0;  // the last share that holds something
  // While other processes keep the CPUs busy this thread copies alone: for so many batches more,
  // and for so many after the next time that the others come late.
  uint32_t alone_ = 0;
  uint32_t next_alone_ = 1;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_ATTACH_THREADS_H_
