// Checks of GPUs: the driver, the devices, access between them, and sharing of their memory between
// processes. gpu_direct.cc has the checks of GPUs and NICs.

#include <algorithm>
#include <array>
#include <map>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

constexpr const char* kNoGpu = "no GPU memory is used here";

// There are GPUs, but CUDA cannot use them.
Findings WithoutDriver(const SystemView& view) {
  const bool installed = !view.Cuda().library.empty();
  const std::string missing =
      installed ? "CUDA sees no GPU" : "no CUDA driver (libcuda.so.1) is installed";
  // A container sees the whole PCI bus of its host, but only the device files of its own GPUs.
  if (!view.files().Exists("/dev/nvidiactl")) {
    return Warning("this host has GPUs, and " + missing, "GPU memory is not used here",
                   "if it should be: modprobe nvidia; docker: --gpus all; in a pod: request "
                   "nvidia.com/gpu");
  }
  return Problem("this process has GPUs, and " + missing, "GPU memory cannot be used",
                 installed ? "nvidia-smi -L; check CUDA_VISIBLE_DEVICES"
                           : "apt install libcuda1, with the version of the kernel module; docker: "
                             "NVIDIA_DRIVER_CAPABILITIES=compute,utility");
}

Findings CudaDriver(const SystemView& view) {
  const CudaState& cuda = view.Cuda();
  if (!cuda.asked) return NotApplicable("not checked: --root shows another host");
  if (absl::IsUnimplemented(cuda.status)) {
    if (!NvidiaGpus(view).empty()) return WithoutDriver(view);
    return NotApplicable(cuda.library.empty()
                             ? "no CUDA driver: GPU memory is not used here"
                             : "no GPU that CUDA sees: GPU memory is not used here");
  }
  if (!cuda.status.ok()) {
    return Problem(std::string(cuda.status.message()),
                   absl::IsDeadlineExceeded(cuda.status)
                       ? "every use of GPU memory waits as long, or forever"
                       : "GPU memory cannot be used",
                   "nvidia-smi; dmesg | grep -i -e nvrm -e xid; the driver's library and the "
                   "kernel module must have the same version");
  }
  std::vector<std::string> parts = {
      absl::StrFormat("CUDA %d.%d", cuda.version / 1000, cuda.version % 1000 / 10)};
  const std::string module = view.files().Read("/sys/module/nvidia/version").value_or("");
  if (!module.empty()) parts.push_back("driver " + module);
  parts.push_back(cuda.library);
  return Ok(absl::StrJoin(parts, ", "));
}

// It matters only where several workers use one GPU, and nothing here tells whether they do.
const char* WordsOfMps(const cuda::Device& device) {
  if (!device.mps.has_value()) return "";
  return *device.mps ? ", MPS: workers that share it run side by side"
                     : ", no MPS: workers that share it take turns";
}

Findings Gpus(const SystemView& view) {
  if (!view.Cuda().usable()) return NotApplicable(kNoGpu);
  constexpr int kOldestOfKernels = 80;
  Findings findings;
  for (const cuda::Device& device : view.Cuda().devices) {
    if (device.compute < kOldestOfKernels) {
      Append(findings,
             Warning(absl::StrFormat("cuda:%d %s has compute capability %d.%d; the copy kernel "
                                     "needs 8.0",
                                     device.ordinal, device.name, device.compute / 10,
                                     device.compute % 10),
                     "each block takes a driver call of its own, which is slow for small blocks",
                     "a GPU of the Ampere generation or later; larger blocks, with more tokens"));
      continue;
    }
    Append(findings,
           Ok(absl::StrFormat("cuda:%d %s, %s, compute capability %d.%d, %s, %s%s%s",
                              device.ordinal, device.name, FormatBytes(device.memory),
                              device.compute / 10, device.compute % 10, device.pci, device.uuid,
                              IsInstance(device) ? ", a MIG instance" : "", WordsOfMps(device))));
  }
  return findings;
}

// Atomics suggest NVLink, because PCIe does not have them.
std::string WordsOf(const GpuLink& link) {
  if (!link.access) return "only through the host";
  return absl::StrCat(link.atomics ? "all atomics, as over NVLink" : "as over PCIe",
                      link.rank >= 0 ? absl::StrCat(", rank ", link.rank) : "");
}

Findings GpuPeers(const SystemView& view) {
  const CudaState& cuda = view.Cuda();
  if (!cuda.usable()) return NotApplicable(kNoGpu);
  if (cuda.devices.size() < 2) return NotApplicable("one GPU");
  std::map<std::string, std::vector<std::string>> pairs;  // by their connection
  std::vector<std::string> apart;
  for (const GpuLink& link : cuda.links) {
    std::string name = absl::StrCat("cuda:", link.from, ">", link.to);
    if (!link.access) apart.push_back(name);
    pairs[WordsOf(link)].push_back(std::move(name));
  }
  std::vector<std::string> parts;
  parts.reserve(pairs.size());
  for (const auto& [words, names] : pairs) {
    parts.push_back(absl::StrCat(
        pairs.size() == 1 ? absl::StrCat("all ", names.size(), " pairs") : Names(names), ": ",
        words));
  }
  const std::string what = absl::StrJoin(parts, "; ");
  if (apart.empty()) return Ok(what);
  const bool instances = std::ranges::any_of(cuda.devices, IsInstance);
  return Warning(
      "no peer access: " + Names(apart) + (pairs.size() > 1 ? absl::StrCat(" (", what, ")") : ""),
      "cuda_ipc does not copy between these: their transfers are staged in host memory",
      instances ? "MIG instances cannot reach each other; nvidia-smi -mig 0, or one instance for "
                  "both"
                : "nvidia-smi topo -p2p r says why; turn IOMMU and ACS off (BIOS, kernel command "
                  "line); in a VM: GPUs of one NVLink partition");
}

// CUDA shares memory between processes by process id.
Findings GpuIpc(const SystemView& view) {
  const CudaState& cuda = view.Cuda();
  if (!cuda.usable()) return NotApplicable(kNoGpu);
  Findings bad;
  if (HasOwnProcesses(view)) {
    Append(bad, Warning("in a container with its own processes",
                        "cuda_ipc only reaches GPU memory of processes in this container; for "
                        "other processes of this host, transfers are staged and go over tcp",
                        "docker: --network=host --pid=host --ipc=host, or --network=container:NAME "
                        "--pid=container:NAME --ipc=container:NAME for the second container, one "
                        "user and all GPUs (--gpus) in both; in a pod: shareProcessNamespace, or "
                        "hostNetwork, hostPID and hostIPC"));
  }
  const auto without = cuda.Where([](const cuda::Device& d) { return !d.fd_handles; });
  return OrOk(bad, without.empty()
                       ? "handles of cuMemAlloc, descriptors of cuMemCreate"
                       : absl::StrCat("handles of cuMemAlloc; no descriptors of cuMemCreate on ",
                                      GpuNames(without)));
}

Findings GpuPinned(const SystemView& view) {
  const CudaState& cuda = view.Cuda();
  if (!cuda.usable()) return NotApplicable(kNoGpu);
  if (cuda.pinned.ok()) return Ok("host memory for staging can be pinned");
  return Warning(absl::StrCat("16 MiB cannot be pinned: ", cuda.pinned.message()),
                 "staged transfers copy their bytes once more, or fail",
                 "ulimit -l unlimited; docker: --ulimit memlock=-1; raise the memory limit of the "
                 "cgroup; nvidia-smi shows whether the GPU has memory left for a context");
}

}  // namespace

std::vector<int> CudaState::Where(absl::FunctionRef<bool(const cuda::Device&)> predicate) const {
  std::vector<int> ordinals;
  for (const cuda::Device& device : devices) {
    if (predicate(device)) ordinals.push_back(device.ordinal);
  }
  return ordinals;
}

std::string GpuNames(const std::vector<int>& ordinals) {
  std::vector<std::string> names;
  names.reserve(ordinals.size());
  for (const int ordinal : ordinals) names.push_back(absl::StrCat("cuda:", ordinal));
  return Names(names);
}

bool IsInstance(const cuda::Device& device) {
  return device.name.find(" MIG ") != std::string::npos;
}

std::span<const Check> GpuChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"cuda-driver", "libcuda.so.1, /sys/module/nvidia/version, /dev/nvidiactl", &CudaDriver},
      {"gpus", "the CUDA driver: devices", &Gpus},
      {"gpu-peers", "the CUDA driver: peer access, P2P attributes", &GpuPeers},
      {"gpu-ipc", "/proc/1/comm, /.dockerenv, the CUDA driver: handles", &GpuIpc},
      {"gpu-pinned", "the CUDA driver: 16 MiB of host memory, pinned", &GpuPinned},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
