// Kernels of tests: they write content into GPU memory, and look at what a transfer left there, as
// the kernels of an engine would: nothing is copied to the host to be compared. The bodies are the
// same source for the GPU (check_kernels.cu, by nvcc) and for the stand-in driver (by the C++
// compiler), as those of src/cuda/kernels.cuh are.
#ifndef KVXFER_TESTS_GPU_CHECK_KERNELS_CUH_
#define KVXFER_TESTS_GPU_CHECK_KERNELS_CUH_

#include "src/cuda/kernels.cuh"

namespace kvxfer::testing::gpu {

// Entry points, extern "C", with one parameter each, and the threads of a block.
inline constexpr char kFillKernel[] = "kvxfer_test_fill";
inline constexpr char kCheckKernel[] = "kvxfer_test_check";
inline constexpr uint32_t kThreads = 256;

// [at, at + bytes) becomes the content of `seed`; 0: zeros.
struct FillParams {
  uint64_t at = 0;
  uint64_t bytes = 0;
  uint64_t seed = 0;
};
static_assert(sizeof(FillParams) == 24, "the same for every compiler");

inline constexpr uint32_t kNoSource = 0xffffffff;

// Blocks at equal distances. Place p is to hold what block sources[p] of the same arrangement had,
// when that was filled with `seed`; kNoSource: zeros, as behind every block.
struct CheckParams {
  uint64_t at = 0;
  uint64_t sources = 0;  // address of uint32_t[places], of the device
  uint64_t result = 0;   // address of a CheckResult, to which is added
  uint64_t seed = 0;
  uint64_t block_bytes = 0;
  uint64_t stride = 0;
  uint64_t places = 0;
};
static_assert(sizeof(CheckParams) == 56, "the same for every compiler");

struct CheckResult {
  uint64_t looked = 0;          // at bytes
  uint64_t wrong = 0;           // of them
  uint64_t first = UINT64_MAX;  // the first of those
};

// Byte i of what `seed`, not 0, stands for; never zero.
KVXFER_HD unsigned char ContentByte(uint64_t seed, uint64_t i) {
  uint64_t word = seed * 0x9e3779b97f4a7c15u + (i >> 3) * 0xbf58476d1ce4e5b9u;
  word = (word ^ (word >> 31)) * 0x94d049bb133111ebu;
  word ^= word >> 29;
  return static_cast<unsigned char>(1 + ((word >> (8 * (i & 7))) & 0x7f));
}

// The part of one thread: bytes `first`, `first + step`, ... `memory` as in src/cuda/kernels.cuh.
template <typename Memory>
KVXFER_HD void FillBytes(const FillParams& params, uint64_t first, uint64_t step, Memory memory) {
  for (uint64_t i = first; i < params.bytes; i += step) {
    unsigned char* const at = memory.Map(params.at + i, 1);
    if constexpr (Memory::kMayRefuse) {
      if (at == nullptr) return;
    }
    *at = params.seed == 0 ? static_cast<unsigned char>(0) : ContentByte(params.seed, i);
  }
}

template <typename Memory>
KVXFER_HD CheckResult CheckBytes(const CheckParams& params, uint64_t first, uint64_t step,
                                 Memory memory) {
  CheckResult found;
  for (uint64_t i = first; i < params.places * params.stride; i += step) {
    const uint64_t place = i / params.stride;
    const uint64_t column = i - place * params.stride;
    const unsigned char* const source = memory.Map(params.sources + place * 4, 4);
    const unsigned char* const at = memory.Map(params.at + i, 1);
    if constexpr (Memory::kMayRefuse) {
      if (source == nullptr || at == nullptr) return found;
    }
    const uint32_t block = *reinterpret_cast<const uint32_t*>(source);
    const bool empty = block == kNoSource || column >= params.block_bytes;
    const unsigned char wanted = empty ? static_cast<unsigned char>(0)
                                       : ContentByte(params.seed, block * params.stride + column);
    ++found.looked;
    if (*at == wanted) continue;
    ++found.wrong;
    if (i < found.first) found.first = i;
  }
  return found;
}

#if !defined(__CUDACC__)
// What one launch does, by one thread of a CPU.
template <typename Memory>
void RunFill(const FillParams& params, const Memory& memory) {
  FillBytes(params, 0, 1, memory);
}
template <typename Memory>
void RunCheck(const CheckParams& params, const Memory& memory) {
  auto* const result =
      reinterpret_cast<CheckResult*>(memory.Map(params.result, sizeof(CheckResult)));
  if (result == nullptr) return;
  const CheckResult found = CheckBytes(params, 0, 1, memory);
  result->looked += found.looked;
  result->wrong += found.wrong;
  if (found.first < result->first) result->first = found.first;
}
#endif

}  // namespace kvxfer::testing::gpu

#endif  // KVXFER_TESTS_GPU_CHECK_KERNELS_CUH_
