// From pieces to the units of the copy kernel: what adjoins is joined, short pieces at constant
// distances become the rows of one unit (as those of other tensor parallelism, or of NHD against
// HND, are), long ones are cut, so that every multiprocessor has some.
//
// Thread-safety: pure.

#ifndef KVXFER_CUDA_COPY_UNITS_H_
#define KVXFER_CUDA_COPY_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/copier.h"
#include "src/cuda/kernels.cuh"

namespace kvxfer::cuda {

// What a batch reaches beyond the memory of the GPU that copies, the slowest of it.
enum class Reach : uint8_t { kOwn, kPeer, kHost };

// How a batch is spread over a GPU.
//
// A warp has 4 KiB in flight. To fill an H100's memory (3.35 TB/s, half of it reads, at some 700
// ns) 1.2 MB must be, so six warps on each of its 132 multiprocessors are plenty; more of them only
// make units smaller. NVLink (450 GB/s, some 1.5 us) needs 0.7 MB and PCIe (64 GB/s, some 2 us)
// 0.13 MB, which few blocks have in flight: the others are left to whoever computes.
struct CopyShape {
  uint64_t unit_bytes = 0;  // of a unit at most, but for the last ones of a long piece
  uint32_t max_blocks = 0;
  uint32_t warps = 0;  // that are worth being busy

  // The units that a warp takes at a time and the blocks, for one launch of `units`, not 0.
  uint32_t PerGroup(size_t units) const;
  uint32_t Blocks(size_t units, uint32_t per_group) const;
};
CopyShape ShapeOf(uint64_t bytes, Reach reach, int multiprocessors);

// No list of units is longer, for `pieces` of `bytes` in all.
size_t MostUnits(size_t pieces, uint64_t bytes, uint64_t unit_bytes);
// The list of Copier::kMaxPieces pieces at most, whatever they hold.
inline constexpr size_t kMostUnits = 2 * Copier::kMaxPieces;

// Writes the units of `pieces` to `out`, which has room for MostUnits of them; how many.
size_t MakeUnits(std::span<const Piece> pieces, uint64_t unit_bytes, CopyUnit* out);

// `pieces` without the empty ones and with those joined that adjoin, for copies by the driver.
void JoinPieces(std::span<const Piece> pieces, std::vector<Piece>& out);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_UNITS_H_
