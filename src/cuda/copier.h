// Copies scattered pieces of memory by a GPU, many pieces in one launch. A piece may lie in the
// GPU's own memory, in memory of another device that the GPU reaches, in memory of another process
// that was opened here, or in pinned host memory.
//
// A batch is one kernel launch for up to thousands of pieces (kernels.cuh), or a few launches for
// more. If the kernel cannot be used (built without nvcc, or the GPU is older than the kernel), a
// batch is one cuMemcpyAsync per piece. Batches run on a few non-blocking CUDA streams of the
// copier's own, never on the legacy default stream.
//
// Lifetime: its destructor waits for running batches; destroy it when idle() to avoid the wait.
// Thread-safety: none; used by one thread at a time.

#ifndef KVXFER_CUDA_COPIER_H_
#define KVXFER_CUDA_COPIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// A contiguous piece. The copier's device must be able to reach both addresses.
struct Piece {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

class Copier {
 public:
  // The most pieces in one batch.
  static constexpr size_t kMaxPieces = 32768;
  // The most batches under way.
  static constexpr size_t kMaxBatches = 32;

  // `device` is the GPU that copies. Loading the kernel may wait for the GPU's CUDA streams, which
  // may wait for transfers: never call this on the thread that drives transfers. Unavailable, with
  // the cause: CUDA streams or pinned memory for the lists were not available.
  static absl::StatusOr<std::unique_ptr<Copier>> Create(const Driver* driver, int device);
  virtual ~Copier() = default;

  // Begins a batch and returns its number; numbers rise. `pieces` is read during the call only.
  // ResourceExhausted, and nothing was begun: kMaxBatches are under way, the list of units has no
  // space for these pieces (an idle copier takes kMaxPieces), or there are more than kMaxPieces.
  // Any other error: the CUDA driver refused (bad memory, for example), and no byte of the batch
  // will move. If it refuses only a part, the batch is begun and ends with the error. Two batches
  // may run at the same time and end in any order.
  //
  // The memory of all pieces must exist: a kernel that touches other memory breaks the context,
  // also for the application (CheckAlive). The first piece decides how many of the GPU's
  // multiprocessors a batch gets: few if one side is host memory.
  virtual absl::StatusOr<uint64_t> Start(std::span<const Piece> pieces) = 0;

  struct End {
    uint64_t batch = 0;
    // OK: every byte is visible to all work that the device starts from now on. Otherwise nothing
    // of the batch moves from now on, as far as that can be known (broken()). In a broken context
    // each batch ends with an error and no new one can be started.
    absl::Status status{};
  };
  // The next batch that is over, in the order of Start; nothing if there is none.
  virtual std::optional<End> Poll() = 0;

  virtual bool idle() const = 0;
  // True: the context is broken. Batches have ended, but some of their copies may still move bytes.
  virtual bool broken() const = 0;
  // "copy kernel, 2 streams" or "driver copies, a call each (built without nvcc), 2 streams".
  virtual std::string Describe() const = 0;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPIER_H_
