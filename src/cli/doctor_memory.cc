// Checks of memory: GPUs and NICs, huge pages, shared memory.

#include <algorithm>
#include <array>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "src/cli/doctor.h"
#include "src/cli/units.h"

namespace kvxfer::cli {
namespace {

bool ModuleLoaded(const SystemView& view, const std::string& name) {
  return view.files().Exists("/sys/module/" + name);
}

// NVIDIA's open kernel modules export GPU memory as dma-buf; NIC drivers take it from Linux 5.12.
bool NvidiaDmabuf(const SystemView& view) {
  const std::string version = view.files().Read("/proc/driver/nvidia/version").value_or("");
  return version.find("Open Kernel Module") != std::string::npos && view.KernelAtLeast(5, 12);
}

Findings GpuDirect(const SystemView& view) {
  constexpr uint32_t kNvidia = 0x10de;
  const Topology& topology = view.topology();
  if (topology.gpus.empty()) return NotApplicable("no GPU");
  if (topology.devices.empty()) return NotApplicable("no RDMA device");
  const bool nvidia = std::any_of(topology.gpus.begin(), topology.gpus.end(),
                                  [](const Gpu& gpu) { return gpu.vendor == kNvidia; });
  if (!nvidia) return NotApplicable("no NVIDIA GPU; other drivers export dma-buf by themselves");
  if (!view.files().Exists("/sys/module")) return NotApplicable("the tree has no /sys/module");
  if (!ModuleLoaded(view, "nvidia")) {
    return Problem("the NVIDIA driver is not loaded", "GPU memory cannot be used at all",
                   "modprobe nvidia; nvidia-smi");
  }
  const bool efa = std::any_of(topology.ports.begin(), topology.ports.end(),
                               [](const RdmaPort& p) { return p.link == LinkLayer::kEfa; });
  const std::string module = efa ? "efa_nv_peermem" : "nvidia_peermem";
  const bool loaded = ModuleLoaded(view, module) || (!efa && ModuleLoaded(view, "nv_peer_mem"));
  const bool dmabuf = NvidiaDmabuf(view);
  if (loaded && dmabuf) return Ok(module + ", and dma-buf");
  if (loaded) return Ok(module);
  if (dmabuf) return Ok("dma-buf (open kernel module, Linux 5.12 or later)");
  const std::string with_dash = efa ? "efa-nv-peermem" : "nvidia-peermem";
  return Problem(
      "neither " + with_dash + " nor dma-buf",
      "registering GPU memory with a NIC fails (\"bad address\"): it goes through the host",
      "modprobe " + with_dash + "; or the driver's open kernel modules, which export dma-buf");
}

Findings HugePages(const SystemView& view) {
  const std::string folder = "/sys/kernel/mm/transparent_hugepage";
  if (!view.files().Exists("/sys/kernel/mm"))
    return NotApplicable("the tree has no /sys/kernel/mm");
  std::string reserved = "0";
  const std::string meminfo = view.files().Read("/proc/meminfo").value_or("");
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(meminfo, '\n'))) {
    if (!line.starts_with("HugePages_Free:")) continue;
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    reserved = words.back();
  }
  if (reserved != "0") return Ok(reserved + " reserved pages are free");
  const std::string mend =
      "echo advise > " + folder + "/shmem_enabled; or sysctl vm.nr_hugepages=N";
  const std::string cost =
      "each 4 KiB of a cache is a page of its own: slower copies, larger "
      "tables in the NIC, slow registration";
  if (!view.files().Exists(folder + "/hpage_pmd_size")) {
    return Warning("the kernel has no transparent huge pages", cost, "sysctl vm.nr_hugepages=N");
  }
  // Since 6.1 memory can be collapsed into huge pages whatever the settings are.
  if (view.KernelAtLeast(6, 1)) return Ok("transparent, on demand");
  const std::string shmem = view.files().Read(folder + "/shmem_enabled").value_or("");
  const size_t open = shmem.find('[');
  const std::string set =
      open == std::string::npos ? "" : shmem.substr(open + 1, shmem.find(']') - open - 1);
  if (set == "always" || set == "advise" || set == "within_size" || set == "force") {
    return Ok("transparent, shmem_enabled is " + set);
  }
  return Warning(
      "no huge pages for shared memory: shmem_enabled is " + (set.empty() ? "unknown" : set), cost,
      mend);
}

Findings SharedMemory(const SystemView& view) {
  constexpr uint64_t kEnough = uint64_t{512} << 20;
  const std::optional<uint64_t> bytes = view.FilesystemBytes("/dev/shm");
  if (!bytes) return NotApplicable("/dev/shm is not there, or not told");
  if (*bytes >= kEnough) return Ok(FormatBytes(*bytes));
  return Warning("/dev/shm has " + FormatBytes(*bytes),
                 "kvxfer does without it, but NCCL and engines' workers beside it fail (SIGBUS)",
                 "docker: --shm-size=8g; in a pod: an emptyDir of medium Memory at /dev/shm");
}

}  // namespace

std::span<const Check> MemoryChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"gpu-direct", "/sys/module, /proc/driver/nvidia/version", &GpuDirect},
      {"huge-pages", "/proc/meminfo, /sys/kernel/mm/transparent_hugepage", &HugePages},
      {"dev-shm", "size of /dev/shm", &SharedMemory},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
