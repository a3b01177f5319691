// Blocks in GPU memory: how they lie, what is in them, and a look at them, all by kernels. For real
// drivers and the stand-in.
//
// Lifetime: kernels stay loaded as long as the process. Thread-safety: none.
#ifndef KVXFER_TESTS_GPU_CHECK_H_
#define KVXFER_TESTS_GPU_CHECK_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/cuda_contract/cuda.h"
#include "tests/gpu/check_kernels.cuh"

namespace kvxfer::testing {

// Scattered blocks, the same in both processes. Some places stay empty.
struct Layout {
  uint64_t block_bytes = 4096;
  uint32_t blocks = 1;
  uint64_t gap = 0;  // bytes behind each

  uint64_t stride() const { return block_bytes + gap; }
  uint32_t places() const { return blocks + blocks / 8 + 1; }
  uint64_t bytes() const { return stride() * places(); }
  // Where the blocks of the initiator, or of the target, are: block i of the one goes to, or comes
  // from, block i of the other.
  std::vector<uint32_t> Places(bool target) const;
};

// For each place of `to` which place of `from` its content is of.
std::vector<uint32_t> SourcesOf(const Layout& layout, const std::vector<uint32_t>& to,
                                const std::vector<uint32_t>& from);

// Puts a kernel into the stream that fills the memory with the content of `seed`; 0: zeros.
void FillIn(CUstream stream, CUdeviceptr at, uint64_t bytes, uint64_t seed);
// The same, and waits for it.
void FillNow(CUdeviceptr at, uint64_t bytes, uint64_t seed);

// One look, by a kernel of the GPU.
class Check {
 public:
  // At `at`: what SourcesOf says, of content `seed`.
  Check(const Layout& layout, CUdeviceptr at, const std::vector<uint32_t>& sources, uint64_t seed);

  // Puts the kernel into the stream, once.
  void Launch(CUstream stream);
  // Waits for the stream, which the kernel is in.
  gpu::CheckResult Result(CUstream stream);
  // Launch and Result, in a stream of its own.
  gpu::CheckResult Now();

 private:
  PinnedMemory host_;  // a result, and the sources behind it
  Memory device_;      // the same
  gpu::CheckParams params_{};
};

// Every byte was looked at, and is what it is to be.
::testing::AssertionResult IsGood(const gpu::CheckResult& result, const Layout& layout);
// Kernels run and find what they wrote: no error has stayed in the context.
::testing::AssertionResult KernelsWork();

// What is in use of GPU 0, by all processes, in bytes. The stand-in has no such number: the pieces
// of memory that this process has or has open.
uint64_t GpuInUse();
// As GpuInUse counts, what a region of `bytes` adds at least; half of it, for other things of the
// GPU are made and given back meanwhile.
uint64_t WeightOf(uint64_t bytes);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_GPU_CHECK_H_
