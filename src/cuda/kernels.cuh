// The copy kernel: its parameters and its body. The body is one source for the GPU (kernels.cu, by
// nvcc) and for a CPU (tests, by the C++ compiler).
//
// A batch is a few parts, which are in the kernel's parameter. A part is either a list of units in
// pinned host memory, or paged blocks: two bases and strides, and where the ids of both sides are.
// A unit is what one warp copies: rows of equal length at constant distances, about 4 to 32 KiB in
// total; a contiguous piece is one row. The GPU computes the units of paged blocks (UnitAt); the
// host makes those of a list (copy_units.h): it cuts large pieces and joins small ones at constant
// distances, so that each lane has several 16-byte loads in flight whatever the pieces are.
//
// The entry point is extern "C" and has one parameter, a CopyParams by value:
//   KVXFER_COPY_KERNEL<<<any number of blocks, kCopyThreads>>>(CopyParams)
// It copies every unit of every part once, in any order. Units do not overlap. RunCopy below does
// on a CPU what a launch does on a GPU.

#ifndef KVXFER_CUDA_KERNELS_CUH_
#define KVXFER_CUDA_KERNELS_CUH_

#include <stdint.h>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define KVXFER_GPU_SOURCE 1
#define KVXFER_HD __host__ __device__ __forceinline__
#define KVXFER_HD_APART __host__ __device__ __noinline__  // its registers are its own
#else
#define KVXFER_HD inline
#define KVXFER_HD_APART inline
#endif
// A parameter that is indexed stays where it is, instead of being copied to each thread. HIP's
// compiler does so without being told.
#if defined(__CUDACC__) && !defined(__HIPCC__)
#define KVXFER_KERNEL_CONSTANT __grid_constant__
#else
#define KVXFER_KERNEL_CONSTANT
#endif
// The value of lane `lane` of the warp, for all of its 32 lanes, which run together.
#if defined(__HIPCC__)
#define KVXFER_SHUFFLE(value, lane) __shfl(value, lane, 32)
#elif defined(__CUDACC__)
#define KVXFER_SHUFFLE(value, lane) __shfl_sync(0xffffffffu, value, lane)
#endif
#if defined(__CUDA_ARCH__)
#define KVXFER_UNROLL _Pragma("unroll")
#define KVXFER_NO_UNROLL _Pragma("unroll 1")
#else
#define KVXFER_UNROLL
#define KVXFER_NO_UNROLL
#endif

namespace kvxfer::cuda {

// The entry point's name, also for cuModuleGetFunction, and its threads per block. The number in
// the name must change with the layouts below, because compiled kernels may come from another
// build.
#define KVXFER_COPY_KERNEL kvxfer_copy_3
#define KVXFER_TEXT_OF(name) #name
#define KVXFER_NAME_OF(macro) KVXFER_TEXT_OF(macro)
inline constexpr char kCopyKernel[] = KVXFER_NAME_OF(KVXFER_COPY_KERNEL);
#undef KVXFER_NAME_OF
#undef KVXFER_TEXT_OF
inline constexpr uint32_t kWarp = 32;
inline constexpr uint32_t kCopyThreads = 256;

// Row r is `bytes` bytes from `from + r * from_stride` to `to + r * to_stride`. Addresses are the
// device's. Any alignment works; 16 bytes is fast. bytes * rows < 2 GiB.
struct alignas(16) CopyUnit {
  uint64_t to = 0;
  uint64_t from = 0;
  uint32_t bytes = 0;
  uint32_t rows = 1;
  int32_t to_stride = 0;  // in bytes; ignored if there is one row
  int32_t from_stride = 0;
};
static_assert(sizeof(CopyUnit) == 32, "read by the GPU in halves of 16 bytes");

// The pieces that each block of a part consists of, if it is not one: pieces of equal length at
// constant distances. The last dim is the innermost loop.
inline constexpr uint32_t kMaxPieceDims = 4;
struct PieceDim {
  uint64_t to_stride = 0;
  uint64_t from_stride = 0;
  uint64_t count = 0;
};
struct PieceGrid {
  PieceDim dims[kMaxPieceDims];
};

// Either `list` is the device address of CopyUnit[units], 16-byte aligned; or it is 0, and the part
// is paged blocks: block i goes from `from + from_ids[i] * from_stride` to
// `to + to_ids[i] * to_stride`. The ids are uint32_t at device addresses. A block of which an id is
// beyond its side's last one is not copied, and CopyParams::refused is told.
//
// How blocks become units: a piece longer than a unit is cut, piece_units per piece. Of shorter
// ones a unit takes unit_rows neighbours in the innermost dim, row_units per row of pieces. A block
// without a grid is one piece.
struct CopyPart {
  uint64_t list = 0;
  uint64_t to = 0;
  uint64_t from = 0;
  uint64_t to_stride = 0;
  uint64_t from_stride = 0;
  uint64_t to_ids = 0;
  uint64_t from_ids = 0;
  uint32_t units = 0;        // in the whole part
  uint32_t block_units = 0;  // in a block
  uint32_t row_units = 0;    // in a row of pieces
  uint32_t piece_units = 0;  // in a piece; 1: a unit has whole pieces
  uint32_t piece_bytes = 0;
  uint32_t unit_bytes = 0;  // at most, of a piece that is cut
  uint32_t unit_rows = 0;   // pieces, at most; 1 if pieces are cut
  uint16_t grid = 0;        // index in CopyParams::grids
  uint16_t dim_count = 0;   // dims in use of that grid; 0: a block is one piece
  uint32_t to_last = 0;     // the largest id that there is
  uint32_t from_last = 0;
};
static_assert(sizeof(CopyPart) == 96, "the same for every compiler");

// The kernel's parameter; within the 4 KiB that every GPU takes.
inline constexpr uint32_t kMaxParts = 32;
inline constexpr uint32_t kMaxGrids = 8;
struct CopyParams {
  CopyPart parts[kMaxParts];
  PieceGrid grids[kMaxGrids];
  uint64_t refused = 0;  // device address of a uint32_t that becomes 1 if a block is refused; or 0
  uint32_t count = 0;    // units of all parts
  uint32_t per_group = 1;  // units that a warp takes at a time, 1 to kMaxPerGroup
};
static_assert(sizeof(CopyParams) == 96 * kMaxParts + 96 * kMaxGrids + 16 &&
              sizeof(CopyParams) < 4096);
// A lane computes a unit.
inline constexpr uint32_t kMaxPerGroup = kWarp;

// The words that one load or store moves.
#if defined(KVXFER_GPU_SOURCE)
using Word16 = uint4;
using Word8 = uint2;
using Word4 = uint32_t;
#else
struct [[gnu::may_alias]] alignas(16) Word16 {
  uint64_t halves[2];
};
using Word8 [[gnu::may_alias]] = uint64_t;
using Word4 [[gnu::may_alias]] = uint32_t;
#endif
using Word1 = unsigned char;

// Streaming loads and stores: the data is touched once and need not stay in a cache. Under
// ThreadSanitizer they are relaxed atomics. Two copies that overlap are the users' error, and not
// undefined behaviour as in C++; but a CPU access that races with a copy is still reported.
template <typename Word>
KVXFER_HD Word LoadWord(const Word* at) {
#if defined(__CUDA_ARCH__)
  return __ldcs(at);
#elif defined(__SANITIZE_THREAD__) && !defined(KVXFER_GPU_SOURCE)
  if constexpr (sizeof(Word) == 16) {
    return {{__atomic_load_n(&at->halves[0], __ATOMIC_RELAXED),
             __atomic_load_n(&at->halves[1], __ATOMIC_RELAXED)}};
  } else {
    return __atomic_load_n(at, __ATOMIC_RELAXED);
  }
#else
  return *at;
#endif
}
template <typename Word>
KVXFER_HD void StoreWord(Word* at, Word word) {
#if defined(__CUDA_ARCH__)
  __stcs(at, word);
#elif defined(__SANITIZE_THREAD__) && !defined(KVXFER_GPU_SOURCE)
  if constexpr (sizeof(Word) == 16) {
    __atomic_store_n(&at->halves[0], word.halves[0], __ATOMIC_RELAXED);
    __atomic_store_n(&at->halves[1], word.halves[1], __ATOMIC_RELAXED);
  } else {
    __atomic_store_n(at, word, __ATOMIC_RELAXED);
  }
#else
  *at = word;
#endif
}

// Maps an address to the bytes, for the code that runs the body. Another Memory may translate
// addresses; it is called at least once per row. If kMayRefuse, it may return null, and that row is
// skipped. Passed by value.
struct DirectMemory {
  static constexpr bool kMayRefuse = false;
  KVXFER_HD unsigned char* Map(uint64_t address, uint64_t /*bytes*/) const {
    return reinterpret_cast<unsigned char*>(address);
  }
};

// Loads in flight per lane. With words of 16 bytes a warp moves 4 KiB of a contiguous piece per
// step. Narrower words use fewer, because more would take registers from the 16-byte case, which is
// the usual one.
inline constexpr uint32_t kInFlight = 8;
inline constexpr uint32_t kFewInFlight = 4;

// Moves words i, i + kWarp, ... below `words`, kDepth at a time while that many are left. `load(i)`
// returns word i, `store(i, word)` stores it. Returns the first index that is left.
template <typename Word, uint32_t kDepth, typename Load, typename Store>
KVXFER_HD uint32_t MoveWords(uint32_t i, uint32_t words, Load load, Store store) {
  KVXFER_NO_UNROLL
  for (; i + (kDepth - 1) * kWarp < words; i += kDepth * kWarp) {
    Word held[kDepth];
    KVXFER_UNROLL
    for (uint32_t k = 0; k < kDepth; ++k) held[k] = load(i + k * kWarp);
    KVXFER_UNROLL
    for (uint32_t k = 0; k < kDepth; ++k) store(i + k * kWarp, held[k]);
  }
  return i;
}
// Moves all words of one lane.
template <typename Word, uint32_t kDepth, typename Load, typename Store>
KVXFER_HD void MoveLane(uint32_t words, uint32_t lane, Load load, Store store) {
  uint32_t i = MoveWords<Word, kDepth>(lane, words, load, store);
  if constexpr (kDepth > 4) i = MoveWords<Word, 4>(i, words, load, store);
  i = MoveWords<Word, 2>(i, words, load, store);
  MoveWords<Word, 1>(i, words, load, store);
}

template <typename Word>
KVXFER_HD void CopyWords(unsigned char* to, const unsigned char* from, uint32_t words,
                         uint32_t lane) {
  Word* const out = reinterpret_cast<Word*>(to);
  const Word* const in = reinterpret_cast<const Word*>(from);
  MoveLane<Word, sizeof(Word) == 16 ? kInFlight : kFewInFlight>(
      words, lane, [in](uint32_t i) { return LoadWord(in + i); },
      [out](uint32_t i, Word word) { StoreWord(out + i, word); });
}

// One row of any alignment. The words are as wide as both addresses allow; the bytes before and
// after them are copied one by one.
template <typename Word>
KVXFER_HD void CopyRowBy(unsigned char* to, const unsigned char* from, uint32_t bytes,
                         uint32_t lane) {
  constexpr uint32_t kWidth = sizeof(Word);
  uint32_t head = static_cast<uint32_t>(0 - reinterpret_cast<uint64_t>(to)) & (kWidth - 1);
  if (head > bytes) head = bytes;
  const uint32_t words = (bytes - head) / kWidth;
  const uint32_t tail = head + words * kWidth;
  CopyWords<Word>(to + head, from + head, words, lane);
  CopyWords<Word1>(to, from, head, lane);
  CopyWords<Word1>(to + tail, from + tail, bytes - tail, lane);
}
KVXFER_HD_APART void CopyRow(unsigned char* to, const unsigned char* from, uint32_t bytes,
                             uint32_t lane) {
  // Bits in which the two addresses differ: they can be aligned together only to the lowest such
  // bit.
  const uint64_t apart = reinterpret_cast<uint64_t>(to) ^ reinterpret_cast<uint64_t>(from);
  if (apart % 16 == 0) {
    CopyRowBy<Word16>(to, from, bytes, lane);
  } else if (apart % 8 == 0) {
    CopyRowBy<Word8>(to, from, bytes, lane);
  } else if (apart % 4 == 0) {
    CopyRowBy<Word4>(to, from, bytes, lane);
  } else {
    CopyWords<Word1>(to, from, bytes, lane);
  }
}

KVXFER_HD uint64_t RowAt(uint64_t first, int32_t stride, uint32_t row) {
  return first + static_cast<uint64_t>(static_cast<int64_t>(stride) * row);
}

// Rows whose addresses and lengths are all multiples of the word. The lanes work on all rows as on
// one, so that short rows leave no lane idle.
template <typename Word, typename Memory>
KVXFER_HD_APART void CopyRowsBy(CopyUnit unit, uint32_t lane, Memory memory) {
  constexpr uint32_t kWidth = sizeof(Word);
  const uint32_t words = unit.bytes / kWidth;
  const auto map = [&](uint64_t first, int32_t stride, uint32_t i) {
    const uint32_t row = i / words;
    const uint32_t column = (i - row * words) * kWidth;
    return reinterpret_cast<Word*>(memory.Map(RowAt(first, stride, row) + column, kWidth));
  };
  MoveLane<Word, kFewInFlight>(
      words * unit.rows, lane,
      [&](uint32_t i) {
        const Word* const in = map(unit.from, unit.from_stride, i);
        if constexpr (Memory::kMayRefuse) {
          if (in == nullptr) return Word{};
        }
        return LoadWord(in);
      },
      [&](uint32_t i, Word word) {
        Word* const out = map(unit.to, unit.to_stride, i);
        if constexpr (Memory::kMayRefuse) {
          if (out == nullptr) return;
        }
        StoreWord(out, word);
      });
}

// Copies lane `lane`'s part of a unit, out of kWarp lanes. The lanes are independent: they need not
// be synchronised.
template <typename Memory>
KVXFER_HD void RunUnit(const CopyUnit& unit, uint32_t lane, Memory memory) {
  uint64_t bits = unit.to | unit.from | unit.bytes;
  if (unit.rows > 1) {
    bits |= static_cast<uint32_t>(unit.to_stride | unit.from_stride);
    if (bits % 16 == 0) return CopyRowsBy<Word16>(unit, lane, memory);
    if (bits % 8 == 0) return CopyRowsBy<Word8>(unit, lane, memory);
    if (bits % 4 == 0) return CopyRowsBy<Word4>(unit, lane, memory);
  }
  KVXFER_NO_UNROLL
  for (uint32_t row = 0; row < unit.rows; ++row) {
    unsigned char* const to = memory.Map(RowAt(unit.to, unit.to_stride, row), unit.bytes);
    const unsigned char* const from =
        memory.Map(RowAt(unit.from, unit.from_stride, row), unit.bytes);
    if constexpr (Memory::kMayRefuse) {
      if (to == nullptr || from == nullptr) continue;
    }
    if (bits % 16 == 0) {
      CopyWords<Word16>(to, from, unit.bytes / sizeof(Word16), lane);
    } else {
      CopyRow(to, from, unit.bytes, lane);
    }
  }
}

// Many lanes may, all with the same value. It is visible when the launch has ended.
template <typename Memory>
KVXFER_HD void Refuse(const CopyParams& params, Memory memory) {
  if (params.refused == 0) return;
  auto* const refused =
      reinterpret_cast<volatile uint32_t*>(memory.Map(params.refused, sizeof(uint32_t)));
  if (refused != nullptr) *refused = 1;
}

// Where unit `index` of paged blocks is. Reads two ids. A block that is refused has no rows; nor
// have null ids (Memory::kMayRefuse).
template <typename Memory>
KVXFER_HD CopyUnit PagedUnitAt(const CopyPart& part, const CopyParams& params, uint32_t index,
                               Memory memory) {
  const uint32_t block = index / part.block_units;
  uint32_t rest = index - block * part.block_units;
  const auto id = [&](uint64_t ids) {
    return reinterpret_cast<const uint32_t*>(
        memory.Map(ids + uint64_t{block} * sizeof(uint32_t), sizeof(uint32_t)));
  };
  const uint32_t* const to_id = id(part.to_ids);
  const uint32_t* const from_id = id(part.from_ids);
  CopyUnit unit;
  if constexpr (Memory::kMayRefuse) {
    if (to_id == nullptr || from_id == nullptr) {
      unit.rows = 0;
      return unit;
    }
  }
  // Each read once: ids in GPU memory may be written meanwhile.
  const uint32_t to = *static_cast<const volatile uint32_t*>(to_id);
  const uint32_t from = *static_cast<const volatile uint32_t*>(from_id);
  if (to > part.to_last || from > part.from_last) {
    Refuse(params, memory);
    unit.rows = 0;
    return unit;
  }
  unit.to = part.to + to * part.to_stride;
  unit.from = part.from + from * part.from_stride;
  // The position in the row, then the row's in the other dims.
  uint32_t row = rest / part.row_units;
  rest -= row * part.row_units;
  if (part.dim_count > 0) {
    const PieceDim* const dims = params.grids[part.grid].dims;
    KVXFER_NO_UNROLL
    for (uint32_t i = part.dim_count - 1; i-- > 0;) {
      const auto count = static_cast<uint32_t>(dims[i].count);
      const uint32_t at = row % count;
      row /= count;
      unit.to += at * dims[i].to_stride;
      unit.from += at * dims[i].from_stride;
    }
    const PieceDim& inner = dims[part.dim_count - 1];
    const uint32_t piece = part.piece_units == 1 ? rest * part.unit_rows : rest / part.piece_units;
    unit.to += piece * inner.to_stride;
    unit.from += piece * inner.from_stride;
    const uint32_t left = static_cast<uint32_t>(inner.count) - piece;
    unit.rows = left < part.unit_rows ? left : part.unit_rows;
    unit.to_stride = static_cast<int32_t>(inner.to_stride);
    unit.from_stride = static_cast<int32_t>(inner.from_stride);
    rest %= part.piece_units;
  }
  unit.bytes = part.piece_bytes;
  if (part.piece_units > 1) {
    const uint32_t done = rest * part.unit_bytes;
    unit.to += done;
    unit.from += done;
    unit.bytes -= done;
    if (unit.bytes > part.unit_bytes) unit.bytes = part.unit_bytes;
  }
  return unit;
}

// Unit `index` of a launch.
template <typename Memory>
KVXFER_HD CopyUnit UnitAt(const CopyParams& params, uint32_t index, Memory memory) {
  uint32_t at = 0;
  KVXFER_NO_UNROLL
  while (index >= params.parts[at].units) index -= params.parts[at++].units;
  const CopyPart& part = params.parts[at];
  if (part.list == 0) return PagedUnitAt(part, params, index, memory);
  const auto* const unit = reinterpret_cast<const CopyUnit*>(
      memory.Map(part.list + uint64_t{index} * sizeof(CopyUnit), sizeof(CopyUnit)));
  if constexpr (Memory::kMayRefuse) {
    if (unit == nullptr) {
      CopyUnit none;
      none.rows = 0;
      return none;
    }
  }
  return *unit;
}

#if !defined(KVXFER_GPU_SOURCE)
// Does on one CPU thread what a launch does: every lane of every unit. Memory::Map also maps the
// lists and the ids.
template <typename Memory>
void RunCopy(const CopyParams& params, const Memory& memory) {
  for (uint32_t i = 0; i < params.count; ++i) {
    const CopyUnit unit = UnitAt(params, i, memory);
    for (uint32_t lane = 0; lane < kWarp; ++lane) RunUnit(unit, lane, memory);
  }
}
#endif

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_KERNELS_CUH_
