// Modules and kernels. The kernels are the library's own and those of tests/gpu, by the sources
// that the GPU runs too; every module has them all.
#include "src/cuda/kernels.cuh"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>
#include <utility>

#include "tests/gpu/check_kernels.cuh"
#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

using cuda::CopyParams;

// The address space as the threads of a kernel find it. Of one thread.
class KernelMemory {
 public:
  KernelMemory(std::vector<Reach> reach, int device) : reach_(std::move(reach)), device_(device) {}

  unsigned char* Map(uint64_t address, uint64_t bytes) {
    for (size_t& last : last_) {
      if (const auto found = Within(last, address, bytes); found != nullptr) return found;
    }
    const auto next = std::ranges::upper_bound(reach_, address, {}, &Reach::at);
    if (next != reach_.begin()) {
      const auto index = static_cast<size_t>(next - reach_.begin()) - 1;
      if (const auto found = Within(index, address, bytes); found != nullptr) {
        last_[turn_ ^= 1] = index;
        return found;
      }
    }
    Fault(address, bytes);
    return nullptr;
  }
  bool fault() const { return fault_; }

 private:
  unsigned char* Within(size_t index, uint64_t address, uint64_t bytes) const {
    if (index >= reach_.size()) return nullptr;
    const Reach& reach = reach_[index];
    if (address < reach.at || address > reach.end || bytes > reach.end - address) return nullptr;
    return reinterpret_cast<unsigned char*>(reach.alias + (address - reach.at));
  }

  void Fault(uint64_t address, uint64_t bytes) {
    if (std::exchange(fault_, true)) return;
    std::fprintf(stderr,
                 "stand-in CUDA driver: a kernel of device %d touched %#llx, %llu bytes: neither "
                 "memory that it reaches nor pinned host memory\n",
                 device_, static_cast<unsigned long long>(address),
                 static_cast<unsigned long long>(bytes));
  }

  const std::vector<Reach> reach_;
  const int device_;
  size_t last_[2] = {0, 0};
  unsigned turn_ = 0;
  bool fault_ = false;
};

// What the kernel is given, by value.
struct MapOf {
  static constexpr bool kMayRefuse = true;
  unsigned char* Map(uint64_t address, uint64_t bytes) const { return memory->Map(address, bytes); }
  KernelMemory* memory;
};

// What a launch does.
using Work = std::function<CUresult(KernelMemory& memory)>;

// `given`: where the kernel's one parameter is.
template <typename Params, auto kRun>
Work WorkOf(const void* given) {
  Params params{};
  std::memcpy(&params, given, sizeof(params));
  return [params](KernelMemory& memory) { return kRun(params, MapOf{&memory}); };
}

CUresult Copy(const CopyParams& params, const MapOf& memory) {
  uint64_t units = 0;
  for (const cuda::CopyPart& part : params.parts) {
    if (units == params.count) break;
    if (part.list % 16 != 0 || (part.list == 0 && part.block_units == 0)) {
      return CUDA_ERROR_LAUNCH_FAILED;
    }
    units += part.units;
  }
  if (units != params.count || params.per_group == 0 || params.per_group > cuda::kMaxPerGroup) {
    return CUDA_ERROR_LAUNCH_FAILED;
  }
  RunCopy(params, memory);
  return CUDA_SUCCESS;
}
CUresult Fill(const gpu::FillParams& params, const MapOf& memory) {
  gpu::RunFill(params, memory);
  return CUDA_SUCCESS;
}
CUresult Check(const gpu::CheckParams& params, const MapOf& memory) {
  gpu::RunCheck(params, memory);
  return CUDA_SUCCESS;
}

struct Code {
  std::string_view name;
  unsigned threads;  // of a block
  Work (*work)(const void* given);
};
constexpr Code kCodes[] = {
    {cuda::kCopyKernel, cuda::kCopyThreads, &WorkOf<CopyParams, &Copy>},
    {gpu::kFillKernel, gpu::kThreads, &WorkOf<gpu::FillParams, &Fill>},
    {gpu::kCheckKernel, gpu::kThreads, &WorkOf<gpu::CheckParams, &Check>},
};

// Of the kernels that were given out, by their ids. Under the lock of the state; of the process's
// life, for streams run until its end.
std::map<uint64_t, const Code*>& CodeOfKernels() {
  static auto* const codes = new std::map<uint64_t, const Code*>;
  return *codes;
}

CUresult RunKernel(State* state, int device, const Work& work) {
  std::vector<Reach> reach;
  {
    const Lock lock(state->mutex);
    reach =
        state->memory.ReachOf([&](const Range& range) { return MayReach(state, range, device); });
  }
  KernelMemory memory(std::move(reach), device);
  const CUresult result = work(memory);
  return memory.fault() ? CUDA_ERROR_ILLEGAL_ADDRESS : result;
}

// Device code in one of the forms that drivers take: a fatbin, a cubin, or PTX.
bool IsImage(const void* image) {
  const auto* const bytes = static_cast<const unsigned char*>(image);
  constexpr unsigned char kFatbin[] = {0x50, 0xed, 0x55, 0xba};
  constexpr unsigned char kElf[] = {0x7f, 'E', 'L', 'F'};
  if (bytes[0] == kFatbin[0] || bytes[0] == kElf[0]) {
    return std::memcmp(bytes, kFatbin, 4) == 0 || std::memcmp(bytes, kElf, 4) == 0;
  }
  if (bytes[0] != '/' && bytes[0] != '.' && bytes[0] != '\n') return false;
  const auto* const text = static_cast<const char*>(image);
  return std::string_view(text, strnlen(text, 8192)).find(".version") != std::string_view::npos;
}

}  // namespace

extern "C" CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  KVXFER_STANDIN_ENTER(cuModuleLoadData, kContext);
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsImage(image)) return CUDA_ERROR_INVALID_IMAGE;
  const uint64_t id = call.state().NewId();
  call.state().modules.emplace(id, Module{.context = &call.context()});
  *module = ToHandle<CUmodule>(id);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuModuleUnload(CUmodule module) {
  KVXFER_STANDIN_ENTER(cuModuleUnload, kContext);
  State& state = call.state();
  const uint64_t id = ToId(module);
  if (!state.modules.contains(id)) return CUDA_ERROR_INVALID_HANDLE;
  WaitIdle(&state, &call.lock(), call.context());
  std::erase_if(state.kernels, [&](const auto& entry) { return entry.second.module == id; });
  state.modules.erase(id);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  KVXFER_STANDIN_ENTER(cuModuleGetFunction, kContext);
  State& state = call.state();
  if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!state.modules.contains(ToId(module))) return CUDA_ERROR_INVALID_HANDLE;
  const auto* const code = std::ranges::find(kCodes, std::string_view(name), &Code::name);
  if (code == std::end(kCodes)) return CUDA_ERROR_NOT_FOUND;
  const uint64_t id = state.NewId();
  CodeOfKernels().emplace(id, code);
  state.kernels.emplace(id, Kernel{.module = ToId(module)});
  *function = ToHandle<CUfunction>(id);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
                                   unsigned grid_z, unsigned block_x, unsigned block_y,
                                   unsigned block_z, unsigned shared_bytes, CUstream stream,
                                   void** parameters, void** extra) {
  KVXFER_STANDIN_ENTER(cuLaunchKernel, kContext);
  State& state = call.state();
  const auto kernel = state.kernels.find(ToId(function));
  if (kernel == state.kernels.end() ||
      state.modules.at(kernel->second.module).context != &call.context()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  const Code& code = *CodeOfKernels().at(kernel->first);
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != code.threads || block_y != 1 ||
      block_z != 1 || shared_bytes != 0 || parameters == nullptr || extra != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Stream* const found = FindStream(&state, &call.context(), stream, "cuLaunchKernel");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto launched =
      found->Enqueue([state = &state, device = call.context().device,
                      work = code.work(parameters[0])] { return RunKernel(state, device, work); });
  AwaitIfAtOnce(&state, &call.lock(), *launched);
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
