// Copies scattered pieces of memory by a GPU, many in one launch: between its own memory, memory of
// other devices that it reaches, memory of other processes that was opened here, and pinned host
// memory.
//
// A batch is one kernel launch for thousands of pieces (kernels.cuh; a few launches where they are
// very many), or where kernels cannot be used (built without nvcc, or the device is older than they
// are) one driver copy a piece; on one of a few non-blocking streams of its own, never the legacy
// default stream.
//
// Lifetime: destroyed only when idle(); else its destructor waits for what runs.
// Thread-safety: none; used by one owner.

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

// One contiguous piece. Both addresses are ones that the device of the copier can reach.
struct Piece {
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t bytes = 0;
};

class Copier {
 public:
  // Most pieces of one batch.
  static constexpr size_t kMaxPieces = 32768;
  // Most batches under way.
  static constexpr size_t kMaxBatches = 32;

  // `device`: whose engines copy. Waits for its streams where loading code does, so not for the
  // thread that drives transfers, for which a stream may wait. Unavailable, with the cause: streams
  // or pinned memory for the lists could not be had.
  static absl::StatusOr<std::unique_ptr<Copier>> Create(const Driver* driver, int device);
  virtual ~Copier() = default;

  // Begins a batch, read during the call; its number, which rises. ResourceExhausted: kMaxBatches
  // are under way, or as many pieces as there is room for (an idle copier takes kMaxPieces), or
  // more than kMaxPieces; nothing was begun. Another error: the driver refused (bad memory, ...),
  // and no byte of it will move; where it refuses only some of it the batch ends with the error
  // instead. Two batches may run at the same time and end in any order.
  //
  // The memory of all pieces must be there: a kernel that touches other memory ruins the context,
  // for the application too (CheckAlive). Its first piece says how many of the GPU's
  // multiprocessors a batch is worth: few where one side is host memory.
  virtual absl::StatusOr<uint64_t> Start(std::span<const Piece> pieces) = 0;

  struct End {
    uint64_t batch = 0;
    // OK: every byte is visible to whatever the device runs from now on. Else nothing of it moves
    // any more, as far as that can be known (broken()); where the context is ruined each batch ends
    // so, and no other can be started.
    absl::Status status{};
  };
  // The next batch that is over, in the order of Start; none: none is.
  virtual std::optional<End> Poll() = 0;

  virtual bool idle() const = 0;
  // The context is ruined: batches have ended, and nobody knows what of them still moves.
  virtual bool broken() const = 0;
  // "copy kernel, 2 streams" or "driver copies, a call each (built without nvcc), 2 streams".
  virtual std::string Describe() const = 0;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPIER_H_
