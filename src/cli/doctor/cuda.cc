// What `kvxfer doctor` asks the CUDA driver.

#include <dlfcn.h>

#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/host_memory.h"
#include "src/cli/doctor/gpu.h"
#include "src/cuda/pinned.h"

namespace kvxfer::cli {
namespace {

// More than 8 MiB, the usual limit of locked memory, which is too small for kvxfer's staging.
constexpr size_t kPinned = size_t{16} << 20;

// The file of the driver that this process has loaded; empty: none.
std::string LoadedLibrary() {
  void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  Dl_info info{};
  void* const symbol = dlsym(library, "cuInit");
  const bool found = symbol != nullptr && dladdr(symbol, &info) != 0;
  std::string file = found && info.dli_fname != nullptr ? info.dli_fname : "libcuda.so.1";
  dlclose(library);
  return file;
}

std::vector<GpuLink> LinksOf(const cuda::Driver& driver) {
  const cuda::api::Calls& calls = driver.calls();
  const auto handle = [&calls](int ordinal) {
    cuda::api::CUdevice device = 0;
    return calls.cuDeviceGet(&device, ordinal) == cuda::api::CUDA_SUCCESS ? device : -1;
  };
  std::vector<GpuLink> links;
  for (const cuda::Device& from : driver.devices()) {
    for (const cuda::Device& to : driver.devices()) {
      if (from.ordinal == to.ordinal) continue;
      const cuda::api::CUdevice here = handle(from.ordinal);
      const cuda::api::CUdevice there = handle(to.ordinal);
      GpuLink link{.from = from.ordinal, .to = to.ordinal};
      int value = 0;
      link.access =
          calls.cuDeviceCanAccessPeer(&value, here, there) == cuda::api::CUDA_SUCCESS && value != 0;
      const auto has = [&](cuda::api::CUdevice_P2PAttribute attribute) {
        return calls.cuDeviceGetP2PAttribute(&value, attribute, here, there) ==
               cuda::api::CUDA_SUCCESS;
      };
      link.atomics = has(cuda::api::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) && value != 0;
      if (has(cuda::api::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)) link.rank = value;
      links.push_back(link);
    }
  }
  return links;
}

absl::Status TryPinning(const cuda::Driver& driver) {
  absl::StatusOr<HostMemory> memory = HostMemory::Allocate(MemorySource::kAttached, kPinned);
  if (!memory.ok()) return memory.status();
  return cuda::Pinned::Pin(&driver, driver.devices().front().ordinal, memory->bytes().data(),
                           kPinned)
      .status();
}

}  // namespace

CudaState AskCuda() {
  CudaState state{.asked = true};
  const absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  state.library = LoadedLibrary();
  if (!driver.ok()) {
    state.status = driver.status();
    return state;
  }
  state.version = (*driver)->version();
  state.devices.assign((*driver)->devices().begin(), (*driver)->devices().end());
  state.links = LinksOf(**driver);
  if (!state.devices.empty()) state.pinned = TryPinning(**driver);
  return state;
}

CudaState AskWithin(Duration longest, std::function<CudaState()> ask) {
  auto answer = std::make_shared<std::promise<CudaState>>();
  std::future<CudaState> state = answer->get_future();
  // Detached, because a call into a driver that hangs cannot be interrupted.
  std::thread([answer, ask = std::move(ask)] { answer->set_value(ask()); }).detach();
  if (state.wait_for(longest) == std::future_status::ready) return state.get();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest).count();
  return {.asked = true,
          .status = absl::DeadlineExceededError(
              absl::StrCat("the CUDA driver does not answer within ", seconds, " s"))};
}

}  // namespace kvxfer::cli
