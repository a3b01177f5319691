// Turns pieces into the units of the copy kernel. Adjacent pieces are joined. Short pieces at
// constant distances become the rows of one unit; other tensor parallelism, or NHD against HND,
// produces such pieces. Long pieces are cut, so that every multiprocessor gets some.
//
// Thread-safety: pure functions.

#ifndef KVXFER_CUDA_COPY_UNITS_H_
#define KVXFER_CUDA_COPY_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/copier.h"
#include "src/cuda/kernels.cuh"

namespace kvxfer::cuda {

// The slowest memory that a batch touches, apart from that of the GPU that copies.
enum class Reach : uint8_t { kOwn, kPeer, kHost };

// How a batch is spread over a GPU.
//
// A warp has 4 KiB in flight. To saturate an H100's memory (3.35 TB/s, half of it reads, at about
// 700 ns) 1.2 MB must be in flight, so six warps on each of its 132 multiprocessors suffice; more
// warps would only make the units smaller. NVLink (450 GB/s, about 1.5 us) needs 0.7 MB and PCIe
// (64 GB/s, about 2 us) 0.13 MB. A few blocks have that in flight, and the other multiprocessors
// are left to the application's kernels.
struct CopyShape {
  uint64_t unit_bytes = 0;  // at most, except for the last ones of a long piece
  uint32_t max_blocks = 0;
  uint32_t warps = 0;  // how many warps are worth keeping busy

  // How many units a warp takes at a time, and how many blocks to launch, for a launch of `units` >
  // 0.
  uint32_t PerGroup(size_t units) const;
  uint32_t Blocks(size_t units, uint32_t per_group) const;
};
CopyShape ShapeOf(uint64_t bytes, Reach reach, int multiprocessors);

// An upper bound on the number of units for `pieces` pieces of `bytes` bytes together.
size_t MostUnits(size_t pieces, uint64_t bytes, uint64_t unit_bytes);
// An upper bound for Copier::kMaxPieces pieces, whatever their sizes.
inline constexpr size_t kMostUnits = 2 * Copier::kMaxPieces;

// Writes the units of `pieces` to `out`, which must have space for MostUnits of them. Returns how
// many.
size_t MakeUnits(std::span<const Piece> pieces, uint64_t unit_bytes, CopyUnit* out);

// Copies `pieces` without empty ones and with adjacent ones joined, for copies by cuMemcpyAsync.
void JoinPieces(std::span<const Piece> pieces, std::vector<Piece>& out);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_UNITS_H_
