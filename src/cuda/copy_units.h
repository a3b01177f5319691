// Turns pieces and paged blocks into the parts and units of the copy kernel. Adjacent pieces are
// joined. Short pieces at constant distances become the rows of one unit; other tensor parallelism,
// or NHD against HND, produces such pieces. Long pieces are cut, so that every multiprocessor gets
// some.
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
// `most_sms`: the most multiprocessors to occupy; 0: no limit. A GPU deals blocks out to its
// multiprocessors one by one, so as many blocks occupy as many of them.
CopyShape ShapeOf(uint64_t bytes, Reach reach, int multiprocessors, uint32_t most_sms = 0);

// An upper bound on the number of units for `pieces` pieces of `bytes` bytes together.
size_t MostUnits(size_t pieces, uint64_t bytes, uint64_t unit_bytes);
// An upper bound for Copier::kMaxPieces pieces, whatever their sizes.
inline constexpr size_t kMostUnits = 2 * Copier::kMaxPieces;

// Writes the units of `pieces` to `out`, which must have space for MostUnits of them. Returns how
// many.
size_t MakeUnits(std::span<const Piece> pieces, uint64_t unit_bytes, CopyUnit* out);

// The part of a launch that copies `copy`, of at most Copier::kMaxPagedBytes, but for the addresses
// of its ids and the index of its grid. It has units.
CopyPart MakePart(const PagedCopy& copy, uint64_t unit_bytes);
PieceGrid MakeGrid(const BlockPieces& pieces, bool to_local);

// Appends the pieces of `copy`, for copies by cuMemcpyAsync.
void AddPieces(const PagedCopy& copy, std::vector<Piece>& out);

// Copies `pieces` without empty ones and with adjacent ones joined, for copies by cuMemcpyAsync.
void JoinPieces(std::span<const Piece> pieces, std::vector<Piece>& out);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_UNITS_H_
