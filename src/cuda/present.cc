#include "src/cuda/present.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

namespace kvxfer::cuda {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
// The device files of the NVIDIA kernel module, of WSL, and of Jetson's driver.
constexpr std::array kDevices = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvmap"};

// Whether libcuda.so.1 is in a folder that the loader searches: LD_LIBRARY_PATH, the program's own
// folders and the system's. Libraries that only the loader's cache knows are not found. That does
// not matter: a driver that is installed that way has device files, or there is no GPU.
bool InSearchPath() {
  void* const program = dlopen(nullptr, RTLD_LAZY);
  if (program == nullptr) return false;
  Dl_serinfo size{};
  bool found = false;
  if (dlinfo(program, RTLD_DI_SERINFOSIZE, &size) == 0) {
    // The loader wants a buffer of the size that it has just returned, with the header filled in.
    std::vector<std::max_align_t> space(size.dls_size / sizeof(std::max_align_t) + 1);
    auto* const info = reinterpret_cast<Dl_serinfo*>(space.data());
    std::memcpy(info, &size, offsetof(Dl_serinfo, dls_serpath));
    if (dlinfo(program, RTLD_DI_SERINFO, info) == 0) {
      for (unsigned i = 0; i < info->dls_cnt && !found; ++i) {
        const std::string path = std::string(info->dls_serpath[i].dls_name) + "/" + kLibrary;
        found = access(path.c_str(), R_OK) == 0;
      }
    }
  }
  dlclose(program);
  return found;
}

}  // namespace

absl::Status DriverPresent() {
  if (void* const loaded = dlopen(kLibrary, RTLD_LAZY | RTLD_NOLOAD); loaded != nullptr) {
    dlclose(loaded);
    return absl::OkStatus();
  }
  for (const char* const device : kDevices) {
    if (access(device, F_OK) == 0) return absl::OkStatus();
  }
  if (InSearchPath()) return absl::OkStatus();
  return absl::UnimplementedError(
      "this host has no CUDA driver (neither libcuda.so.1 nor /dev/nvidiactl); in a container, "
      "start it with GPUs (--gpus all)");
}

}  // namespace kvxfer::cuda
