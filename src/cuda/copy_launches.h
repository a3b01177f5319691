// Makes the launches of the copy kernel for a batch: writes its lists of units and its ids into
// pinned memory, and what the kernel needs beside them into the kernel's parameter.
//
// Thread-safety: none.

#ifndef KVXFER_CUDA_COPY_LAUNCHES_H_
#define KVXFER_CUDA_COPY_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "src/cuda/copier.h"
#include "src/cuda/copy_kernel.h"
#include "src/cuda/copy_units.h"
#include "src/cuda/unit_ring.h"

namespace kvxfer::cuda {

// The GPU copies the first pieces of a large batch while the list for the next launch is written.
inline constexpr size_t kPiecesPerLaunch = 4096;
inline constexpr size_t kLaunches = Copier::kMaxPieces / kPiecesPerLaunch;
// Ids lie in the ring too, those of both sides together.
inline constexpr size_t kIdsPerUnit = sizeof(CopyUnit) / sizeof(uint32_t);
inline constexpr size_t kMostIdUnits = 2 * Copier::kMaxBlocks / kIdsPerUnit;
// Has space for a largest batch beside another one of the same size.
inline constexpr size_t kRingUnits = 2 * (kMostUnits + kMostIdUnits + kLaunches * UnitRing::kAlign);

// What there is of a batch.
struct BatchSizes {
  uint64_t bytes = 0;
  uint64_t paged_bytes = 0;
  size_t blocks = 0;       // ids of each side, those that are shared once
  size_t id_units = 0;     // of the ring, for ids
  bool on_device = false;  // some ids are there

  static BatchSizes Of(const CopyBatch& batch);
  // An upper bound on what it takes of the ring: the exact number is known once the units are
  // written.
  size_t MostInRing(size_t pieces, uint64_t unit_bytes) const {
    return MostUnits(pieces, bytes - paged_bytes, unit_bytes) + id_units +
           kLaunches * UnitRing::kAlign;
  }
};

class CopyLaunches {
 public:
  // Both outlive this. `list`: CopyUnit[kRingUnits] in pinned memory.
  CopyLaunches(const CopyKernel* kernel, CopyUnit* list) : kernel_(kernel), list_(list) {}

  // Launches the pieces and paged blocks of `batch` in `stream`. `at`: where the ring has space for
  // it; afterwards its end. `refused`: CopyParams::refused. After an error `begun` says whether
  // something moves all the same.
  absl::Status Launch(const CopyBatch& batch, const CopyShape& shape, api::CUstream stream,
                      uint64_t refused, size_t& at, bool& begun);

 private:
  void AddPaged(const PagedCopy& copy, const PagedCopy* before, const CopyShape& shape, size_t& at);
  absl::Status LaunchParts(const CopyShape& shape, api::CUstream stream, bool& begun);
  bool full() const { return parts_ == kMaxParts || grids_ == kMaxGrids; }

  const CopyKernel* const kernel_;
  CopyUnit* const list_;
  // The launch that is being made: its first parts_ parts and grids_ grids.
  CopyParams params_;
  uint32_t parts_ = 0;
  uint32_t grids_ = 0;
  const BlockPieces* last_grid_ = nullptr;  // what the last grid was made of
  uint64_t to_ids_ = 0;                     // where the ids of the last paged part are
  uint64_t from_ids_ = 0;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_LAUNCHES_H_
