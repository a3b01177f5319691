#include "tests/gpu/check.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/gpu/check_image.h"

namespace kvxfer::testing {
namespace {

using gpu::CheckResult;

constexpr uint64_t kSourcesAt = 64;  // behind the result
constexpr uint64_t kMostGrid = 2048;

// In the primary context of GPU 0, which stays retained.
class Kernels {
 public:
  Kernels() : current_(*new Current) {
    CUmodule module = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, cuModuleLoadData(&module, CheckKernelImage()));
    EXPECT_CUDA(CUDA_SUCCESS, cuModuleGetFunction(&fill_, module, gpu::kFillKernel));
    EXPECT_CUDA(CUDA_SUCCESS, cuModuleGetFunction(&check_, module, gpu::kCheckKernel));
    CUcontext popped = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, cuCtxPopCurrent_v2(&popped));
  }
  CUfunction fill() const { return fill_; }
  CUfunction check() const { return check_; }

 private:
  const Current& current_;
  CUfunction fill_ = nullptr;
  CUfunction check_ = nullptr;
};
const Kernels& TheKernels() {
  static const Kernels kernels;
  return kernels;
}

template <typename Params>
void Launch(CUfunction kernel, CUstream stream, uint64_t threads, Params params) {
  const auto grid = static_cast<unsigned>(
      std::clamp((threads + gpu::kThreads - 1) / gpu::kThreads, uint64_t{1}, kMostGrid));
  void* parameters[] = {&params};
  EXPECT_CUDA(CUDA_SUCCESS, cuLaunchKernel(kernel, grid, 1, 1, gpu::kThreads, 1, 1, 0, stream,
                                           parameters, nullptr));
}

}  // namespace

std::vector<uint32_t> Layout::Places(bool target) const {
  std::vector<uint32_t> all(places());
  std::iota(all.begin(), all.end(), 0u);
  std::mt19937 random(target ? 2 : 1);
  std::ranges::shuffle(all, random);
  all.resize(blocks);
  return all;
}

std::vector<uint32_t> SourcesOf(const Layout& layout, const std::vector<uint32_t>& to,
                                const std::vector<uint32_t>& from) {
  std::vector<uint32_t> sources(layout.places(), gpu::kNoSource);
  for (size_t i = 0; i < to.size(); ++i) sources[to[i]] = from[i];
  return sources;
}

void FillIn(CUstream stream, CUdeviceptr at, uint64_t bytes, uint64_t seed) {
  Launch(TheKernels().fill(), stream, bytes,
         gpu::FillParams{.at = at, .bytes = bytes, .seed = seed});
}

void FillNow(CUdeviceptr at, uint64_t bytes, uint64_t seed) {
  const OwnStream stream;
  FillIn(stream.get(), at, bytes, seed);
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream.get()));
}

Check::Check(const Layout& layout, CUdeviceptr at, const std::vector<uint32_t>& sources,
             uint64_t seed)
    : host_(kSourcesAt + sources.size() * sizeof(uint32_t)),
      device_(kSourcesAt + sources.size() * sizeof(uint32_t)),
      params_{.at = at,
              .sources = device_.at() + kSourcesAt,
              .result = device_.at(),
              .seed = seed,
              .block_bytes = layout.block_bytes,
              .stride = layout.stride(),
              .places = layout.places()} {
  const CheckResult none;
  std::memcpy(host_.data(), &none, sizeof(none));
  std::memcpy(host_.data() + kSourcesAt, sources.data(), sources.size() * sizeof(uint32_t));
  const OwnStream stream;
  EXPECT_CUDA(CUDA_SUCCESS,
              cuMemcpyAsync(device_.at(), host_.at(),
                            kSourcesAt + sources.size() * sizeof(uint32_t), stream.get()));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream.get()));
  TheKernels();  // loading one may wait for what runs
}

void Check::Launch(CUstream stream) {
  testing::Launch(TheKernels().check(), stream, params_.places * params_.stride, params_);
}

CheckResult Check::Result(CUstream stream) {
  EXPECT_CUDA(CUDA_SUCCESS, cuMemcpyAsync(host_.at(), device_.at(), sizeof(CheckResult), stream));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream));
  CheckResult result;
  std::memcpy(&result, host_.data(), sizeof(result));
  return result;
}

CheckResult Check::Now() {
  const OwnStream stream;
  Launch(stream.get());
  return Result(stream.get());
}

::testing::AssertionResult IsGood(const CheckResult& result, const Layout& layout) {
  if (result.looked != layout.bytes()) {
    return ::testing::AssertionFailure() << "the kernel looked at " << result.looked << " bytes of "
                                         << layout.bytes() << ": it did not run";
  }
  if (result.wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << result.wrong << " bytes of " << layout.bytes() << " are wrong, the first at "
         << result.first << " (blocks of " << layout.block_bytes << " bytes, " << layout.stride()
         << " apart)";
}

::testing::AssertionResult KernelsWork() {
  const Layout layout;
  const Memory memory(layout.bytes());
  FillNow(memory.at(), layout.bytes(), 1);
  Check check(layout, memory.at(), {0, 1}, 1);
  return IsGood(check.Now(), layout);
}

uint64_t GpuInUse() {
  if (const cuda_driver::Hooks* const hooks = cuda_driver::FindHooks()) {
    cuda_driver::LiveObjects live;
    hooks->kvxfer_standin_live(&live);
    return live.allocations + live.ipc_mappings + live.mappings + live.handles;
  }
  using MemGetInfo = CUresult (*)(size_t * free, size_t * total);
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  const auto ask = reinterpret_cast<MemGetInfo>(dlsym(library, "cuMemGetInfo_v2"));
  size_t free = 0;
  size_t total = 0;
  EXPECT_TRUE(ask != nullptr && Gives(CUDA_SUCCESS, ask(&free, &total)));
  return total - free;
}

uint64_t WeightOf(uint64_t bytes) { return IsStandIn() ? 1 : bytes / 2; }

}  // namespace kvxfer::testing
