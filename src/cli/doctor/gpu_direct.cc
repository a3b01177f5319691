// Checks of access to GPU memory by NICs.

#include <algorithm>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"
#include "src/core/base/strings.h"
#include "src/transport/host/sysfs_device.h"

namespace kvxfer::cli {
namespace {

constexpr uint32_t kNvidia = 0x10de;

bool ModuleLoaded(const SystemView& view, const std::string& name) {
  return view.files().Exists("/sys/module/" + name);
}

// Why GPU memory cannot be registered as a dma-buf; empty: nothing known prevents it.
std::string NoDmabuf(const SystemView& view) {
  const CudaState& cuda = view.Cuda();
  if (cuda.usable()) {
    if (std::ranges::none_of(cuda.devices, &cuda::Device::dmabuf)) {
      return "the driver exports no dma-buf";
    }
  } else {
    // Only the open kernel modules export dma-buf.
    const std::string version = view.files().Read("/proc/driver/nvidia/version").value_or("");
    if (version.find("Open Kernel Module") == std::string::npos) {
      return "the driver does not use the open kernel modules";
    }
  }
  if (!view.KernelAtLeast(5, 12)) return "Linux is older than 5.12";
  // libibverbs.so.1.MINOR.RELEASE: ibv_reg_dmabuf_mr came with 1.12.
  const std::string file = FindLibrary(view, "libibverbs.so.1");
  const size_t at = file.rfind(".so.1.");
  int minor = 0;
  if (at == std::string::npos) return "";
  const std::vector<std::string> numbers = absl::StrSplit(file.substr(at + 6), '.');
  if (!absl::SimpleAtoi(numbers[0], &minor) || minor >= 12) return "";
  return absl::StrCat("libibverbs 1.", minor, " has no ibv_reg_dmabuf_mr");
}

// A GPU with its own memory on the PCI bus. The MIG instances of a GPU count as that GPU.
struct GpuPlace {
  std::string name;
  std::string pci;
  uint64_t memory = 0;  // bytes; 0: unknown
};

std::vector<GpuPlace> PlacesOf(const SystemView& view) {
  std::map<std::string, GpuPlace> places;
  const CudaState& cuda = view.Cuda();
  if (cuda.usable()) {
    for (const cuda::Device& device : cuda.devices) {
      const std::optional<PciAddress> pci = PciAddress::Parse(device.pci);
      if (!pci || device.integrated) continue;
      GpuPlace& place = places[pci->ToString()];
      if (place.name.empty()) place.name = absl::StrCat("cuda:", device.ordinal);
      place.pci = pci->ToString();
      place.memory += device.memory;
    }
  } else {
    for (const size_t i : NvidiaGpus(view)) {
      const std::string pci = view.topology().gpus[i].pci.ToString();
      places[pci] = {.name = absl::StrCat("GPU ", i), .pci = pci};
    }
  }
  std::vector<GpuPlace> list;
  list.reserve(places.size());
  for (auto& [pci, place] : places) list.push_back(std::move(place));
  return list;
}

// A line of a PCI device's `resource`: first, last, flags.
struct Window {
  uint64_t first = 0;
  uint64_t last = 0;
  uint64_t flags = 0;
};

std::optional<Window> WindowOf(const std::string& line) {
  const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
  Window window;
  if (words.size() < 3 || !absl::SimpleHexAtoi(words[0], &window.first) ||
      !absl::SimpleHexAtoi(words[1], &window.last) ||
      !absl::SimpleHexAtoi(words[2], &window.flags)) {
    return std::nullopt;
  }
  return window;
}

// The size of BAR1, the window through which the PCI bus reaches the GPU's memory; 0: unknown. A
// 64-bit window takes two lines of the file; since Hopper, BAR0 is one.
uint64_t Bar1Bytes(const SystemView& view, const std::string& pci) {
  constexpr uint64_t kMem64 = 0x100000;  // IORESOURCE_MEM_64
  const std::string text =
      view.files().Read(absl::StrCat(ToAbsl(kPciDevices), "/", pci, "/resource")).value_or("");
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::optional<Window> bar0 = WindowOf(lines[0]);
  const size_t at = bar0 && (bar0->flags & kMem64) != 0 ? 2 : 1;
  if (lines.size() <= at) return 0;
  const std::optional<Window> bar1 = WindowOf(lines[at]);
  if (!bar1 || bar1->last <= bar1->first) return 0;
  return bar1->last - bar1->first + 1;
}

std::string GpuLabel(const SystemView& view, size_t gpu) {
  const PciAddress& pci = view.topology().gpus[gpu].pci;
  for (const cuda::Device& device : view.Cuda().devices) {
    if (PciAddress::Parse(device.pci) == pci) return absl::StrCat("cuda:", device.ordinal);
  }
  return absl::StrCat("GPU ", gpu);
}

Findings GpuDirect(const SystemView& view) {
  const Topology& topology = view.topology();
  const CudaState& cuda = view.Cuda();
  if (topology.gpus.empty()) return NotApplicable("no GPU");
  if (topology.devices.empty()) return NotApplicable("no RDMA device");
  if (NvidiaGpus(view).empty()) {
    return NotApplicable("no NVIDIA GPU; drivers of other GPUs export dma-buf");
  }
  if (!view.files().Exists("/sys/module")) return NotApplicable("the tree has no /sys/module");
  if (!ModuleLoaded(view, "nvidia")) {
    return Problem("the NVIDIA driver is not loaded", "GPU memory cannot be used",
                   "modprobe nvidia; nvidia-smi");
  }
  const auto refusing = cuda.Where([](const cuda::Device& d) { return !d.gpu_direct; });
  if (!refusing.empty()) {
    return Warning(GpuNames(refusing) + ": the driver does not support GPUDirect RDMA",
                   "transfers of GPU memory are staged in host memory",
                   "use a data centre or professional GPU: GeForce has no GPUDirect RDMA");
  }
  const bool efa =
      std::ranges::find(topology.ports, LinkLayer::kEfa, &RdmaPort::link) != topology.ports.end();
  const std::string module = efa ? "efa_nv_peermem" : "nvidia_peermem";
  std::vector<std::string> ways;
  if (ModuleLoaded(view, module)) ways.push_back(module);
  if (!efa && ModuleLoaded(view, "nv_peer_mem")) ways.emplace_back("nv_peer_mem");
  const std::string no_dmabuf = NoDmabuf(view);
  if (no_dmabuf.empty()) ways.emplace_back("dma-buf");
  if (!ways.empty()) {
    return Ok(absl::StrCat(absl::StrJoin(ways, " and "),
                           ModuleLoaded(view, "gdrdrv") ? "; gdrdrv is loaded too" : ""));
  }
  const std::string with_dash = efa ? "efa-nv-peermem" : "nvidia-peermem";
  return Problem(
      absl::StrCat("neither ", with_dash, " nor dma-buf (", no_dmabuf, ")"),
      "registering GPU memory with a NIC fails (\"bad address\"): transfers are staged in host "
      "memory",
      "modprobe " + with_dash +
          "; or the driver's open kernel modules, which export dma-buf, with Linux 5.12 and "
          "rdma-core 34 or later");
}

Findings GpuBar1(const SystemView& view) {
  // The size on a GPU without resizable BAR.
  constexpr uint64_t kSmall = uint64_t{256} << 20;
  Findings bad;
  std::vector<std::string> seen;
  for (const GpuPlace& place : PlacesOf(view)) {
    const uint64_t bytes = Bar1Bytes(view, place.pci);
    if (bytes == 0) continue;
    const std::string what =
        absl::StrCat(FormatBytes(bytes),
                     place.memory > 0 ? absl::StrCat(" of ", FormatBytes(place.memory)) : "");
    seen.push_back(absl::StrCat(place.name, " ", what));
    const bool small = place.memory > 0 ? bytes < place.memory : bytes <= kSmall;
    if (!small || view.topology().devices.empty()) continue;
    Append(bad, Warning(absl::StrCat(place.name, ": BAR1 covers ", what),
                        "all processes together cannot register more memory than that with NICs: "
                        "other transfers are staged in host memory",
                        "\"above 4G decoding\" and resizable BAR in the BIOS; nvidia-smi -q -d "
                        "MEMORY shows how much of BAR1 is used"));
  }
  if (seen.empty()) return NotApplicable("no GPU reports the size of its BAR1");
  return OrOk(bad, Names(seen));
}

Findings GpuOrdering(const SystemView& view) {
  const CudaState& cuda = view.Cuda();
  if (!cuda.usable()) return NotApplicable("no GPU memory is used here");
  if (view.topology().devices.empty()) return NotApplicable("no RDMA device");
  const auto orders = [](const cuda::Device& d) {
    return d.writes_ordering >= cuda::api::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  };
  const auto flushes = [](const cuda::Device& d) {
    return (d.flush_options & cuda::api::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) != 0;
  };
  const auto ordered = cuda.Where([&](const cuda::Device& d) { return d.gpu_direct && orders(d); });
  const auto flushed =
      cuda.Where([&](const cuda::Device& d) { return d.gpu_direct && !orders(d) && flushes(d); });
  const auto neither =
      cuda.Where([&](const cuda::Device& d) { return d.gpu_direct && !orders(d) && !flushes(d); });
  if (!neither.empty()) {
    return Warning(GpuNames(neither) + ": neither orders writes of NICs nor can flush them",
                   "kernels might not see data that has arrived, so that transfers are staged in "
                   "host memory",
                   "install a newer driver; nvidia-smi -q | grep -i -e product -e driver");
  }
  std::vector<std::string> parts;
  if (!ordered.empty()) parts.push_back(GpuNames(ordered) + ": the GPU orders writes of NICs");
  if (!flushed.empty()) parts.push_back(GpuNames(flushed) + ": flushed before each notification");
  if (parts.empty()) return NotApplicable("no GPU supports GPUDirect RDMA");
  return Ok(absl::StrJoin(parts, "; "));
}

Findings GpuNics(const SystemView& view) {
  const Topology& topology = view.topology();
  const std::vector<size_t> active = PortsWhere(topology, IsActive);
  if (NvidiaGpus(view).empty()) return NotApplicable("no GPU");
  if (active.empty()) return NotApplicable("no active port");
  Findings bad;
  std::vector<std::string> seen;
  for (const size_t gpu : NvidiaGpus(view)) {
    const auto distance = [&](size_t port) {
      return DistanceOf(topology, topology.DeviceOf(topology.ports[port]),
                        {.kind = MemoryPlace::Kind::kGpu, .index = gpu});
    };
    const size_t nearest = *std::ranges::min_element(active, {}, distance);
    const std::string what = absl::StrCat(GpuLabel(view, gpu), " ", PortNames(topology, {nearest}),
                                          " (", ToString(distance(nearest)), ")");
    seen.push_back(what);
    if (distance(nearest) != DeviceDistance::kOtherNode) continue;
    Append(bad, Warning(what + ": no NIC is near",
                        "transfers between the two cross the link between CPUs, which is slow for "
                        "reads of GPU memory",
                        "kvxfer topo; give the process a GPU and a NIC of the same NUMA node (in "
                        "a pod: the kubelet's topologyManagerPolicy)"));
  }
  return OrOk(bad, Names(seen));
}

}  // namespace

std::vector<size_t> NvidiaGpus(const SystemView& view) {
  std::vector<size_t> gpus;
  for (size_t i = 0; i < view.topology().gpus.size(); ++i) {
    if (view.topology().gpus[i].vendor == kNvidia) gpus.push_back(i);
  }
  return gpus;
}

std::span<const Check> GpuNicChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"gpu-direct",
       "/sys/module, /proc/driver/nvidia/version, /proc/sys/kernel/osrelease, libibverbs.so.1, the "
       "CUDA driver: attributes",
       &GpuDirect},
      {"gpu-bar1", "/sys/bus/pci/devices/*/resource, the CUDA driver: memory", &GpuBar1},
      {"gpu-ordering", "the CUDA driver: order and flush of NICs' writes", &GpuOrdering},
      {"gpu-nics", "positions of GPUs and NICs on the PCI bus", &GpuNics},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
