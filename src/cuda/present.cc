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
// Of the kernel module; of WSL; of Jetson's driver.
constexpr std::array kDevices = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvmap"};

// Whether the library lies in one of the folders that the loader goes through: LD_LIBRARY_PATH, the
// program's own and the system's. What its cache knows beside them is not seen, and needs none: a
// driver that is installed so has device files, or no GPU.
bool InSearchPath() {
  void* const program = dlopen(nullptr, RTLD_LAZY);
  if (program == nullptr) return false;
  Dl_serinfo size{};
  bool found = false;
  if (dlinfo(program, RTLD_DI_SERINFOSIZE, &size) == 0) {
    std::vector<std::max_align_t> room(size.dls_size / sizeof(std::max_align_t) + 1);
    auto* const info = reinterpret_cast<Dl_serinfo*>(room.data());
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
