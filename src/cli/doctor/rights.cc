// Checks of the rights of this process: limits, capabilities, device files.

#include <array>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr int kCapIpcLock = 14;  // linux/capability.h

struct Limit {
  uint64_t soft = kUnlimited;
  uint64_t hard = kUnlimited;
};

std::optional<uint64_t> ParseLimit(const std::string& text) {
  if (text == "unlimited") return kUnlimited;
  uint64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? std::optional(value) : std::nullopt;
}

// The limit `name` of /proc/self/limits: "Max locked memory  8388608  8388608  bytes".
std::optional<Limit> ReadLimit(const SystemView& view, const std::string& name) {
  const std::string text = view.files().Read("/proc/self/limits").value_or("");
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (!line.starts_with(name)) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line.substr(name.size()), ' ', absl::SkipEmpty());
    if (words.size() < 2) return std::nullopt;
    const auto soft = ParseLimit(words[0]);
    const auto hard = ParseLimit(words[1]);
    if (soft && hard) return Limit{*soft, *hard};
  }
  return std::nullopt;
}

constexpr const char* kMemlockFix =
    "ulimit -l unlimited (/etc/security/limits.d: * - memlock unlimited); docker: --ulimit "
    "memlock=-1; in a pod: securityContext.capabilities.add: [IPC_LOCK]";

Findings MemoryLock(const SystemView& view) {
  const std::optional<Limit> limit = ReadLimit(view, "Max locked memory");
  if (!limit) return NotApplicable("/proc/self/limits has no such limit");
  const std::string size = limit->soft == kUnlimited ? "unlimited" : FormatBytes(limit->soft);
  if (view.topology().devices.empty()) return NotApplicable(size + "; no RDMA device needs more");
  if (limit->soft == kUnlimited) return Ok(size);
  if (HasCapability(view, kCapIpcLock).value_or(false)) {
    return Ok(size + ", not enforced: this process has IPC_LOCK");
  }
  const bool small = limit->soft < kGiB;
  return {{small ? Severity::kProblem : Severity::kWarning, "memlock limit is " + size,
           small ? "memory cannot be registered with a NIC: registration fails with ENOMEM"
                 : "a cache larger than that cannot be registered with a NIC",
           kMemlockFix}};
}

Findings IpcLock(const SystemView& view) {
  const std::optional<bool> has = HasCapability(view, kCapIpcLock);
  if (!has) return NotApplicable("/proc/self/status has no capabilities");
  if (view.topology().devices.empty()) {
    return NotApplicable(*has ? "IPC_LOCK; no RDMA device needs it" : "no RDMA device needs it");
  }
  if (*has) return Ok("IPC_LOCK");
  const std::optional<Limit> limit = ReadLimit(view, "Max locked memory");
  if (limit && limit->soft == kUnlimited) return Ok("not needed: memlock is unlimited");
  return Warning(
      "no capability IPC_LOCK", "registered memory counts against the memlock limit",
      "in a pod: securityContext.capabilities.add: [IPC_LOCK]; docker: --cap-add=IPC_LOCK");
}

// The device file of `device`: that of its entry in /sys/class/infiniband_verbs.
std::string UverbsOf(const SystemView& view, const std::string& device) {
  const std::string folder = "/sys/class/infiniband_verbs";
  for (const std::string& name : view.files().List(folder)) {
    if (view.files().Read(absl::StrCat(folder, "/", name, "/ibdev")).value_or("") == device) {
      return "/dev/infiniband/" + name;
    }
  }
  return {};
}

Findings DeviceFiles(const SystemView& view) {
  const Topology& topology = view.topology();
  if (topology.devices.empty()) return NotApplicable("no RDMA device");
  if (!view.files().Exists("/dev")) return NotApplicable("the tree has no /dev");
  std::vector<std::string> missing;
  std::vector<std::string> denied;
  std::string denied_file;
  size_t good = 0;
  for (const RdmaDevice& device : topology.devices) {
    const std::string file = UverbsOf(view, device.name);
    const absl::Status status =
        file.empty() ? absl::NotFoundError("no uverbs device") : view.MayOpen(file);
    if (status.ok()) {
      ++good;
    } else if (absl::IsNotFound(status)) {
      missing.push_back(device.name);
    } else {
      denied.push_back(device.name);
      denied_file = file;
    }
  }
  Findings bad;
  if (!denied.empty()) {
    Append(bad, Problem("no permission to open the device file of " + Names(denied),
                        "verbs, UCX and libfabric cannot use it",
                        "ls -l " + denied_file +
                            "; chmod 0666, or add the user to its group (udev rule)"));
  }
  if (!missing.empty()) {
    // A container sees all devices of the host in sysfs, but only has the files of its own devices.
    const bool none = good == 0 && denied.empty();
    bad.push_back(
        {none ? Severity::kProblem : Severity::kWarning,
         "no device file in /dev/infiniband for " + Names(missing),
         none ? "no device can be opened" : "these devices cannot be opened here",
         "modprobe ib_uverbs; docker: --device=/dev/infiniband; in a pod: request the RDMA "
         "resource of the device plugin"});
  }
  return OrOk(bad, absl::StrCat(good, " can be opened"));
}

Findings AtLeast(const SystemView& view, const char* limit_name, const char* flag, uint64_t enough,
                 const char* meaning) {
  const std::optional<Limit> limit = ReadLimit(view, limit_name);
  if (!limit) return NotApplicable("/proc/self/limits has no such limit");
  const std::string text = limit->soft == kUnlimited ? "unlimited" : absl::StrCat(limit->soft);
  if (limit->soft >= enough) return Ok(text);
  return Warning(absl::StrCat("limit is ", text, ", at least ", enough, " is recommended"), meaning,
                 absl::StrCat("ulimit ", flag, " ", enough,
                              limit->hard < enough ? " (as root: the hard limit is too low)" : ""));
}

Findings OpenFiles(const SystemView& view) {
  return AtLeast(view, "Max open files", "-n", 4096,
                 "each peer and each data stream takes a descriptor: with many peers, connections "
                 "fail");
}

Findings Processes(const SystemView& view) {
  Findings findings = AtLeast(view, "Max processes", "-u", 1024,
                              "threads count too: agents and engines fail to start theirs");
  const std::string pids = view.files().Read("/sys/fs/cgroup/pids.max").value_or("");
  uint64_t most = 0;
  if (!absl::SimpleAtoi(pids, &most) || most >= 1024) return findings;
  Append(findings, Warning(absl::StrCat("the cgroup allows at most ", most, " processes"),
                           "threads count too: agents and engines fail to start theirs",
                           "docker: --pids-limit=-1; kubelet: podPidsLimit"));
  return findings;
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
  const std::string fix = "echo advise > " + folder + "/shmem_enabled; or sysctl vm.nr_hugepages=N";
  const std::string cost =
      "each 4 KiB of a cache is a page of its own: slower copies, larger tables in the NIC, slower "
      "registration";
  if (!view.files().Exists(folder + "/hpage_pmd_size")) {
    return Warning("the kernel has no transparent huge pages", cost, "sysctl vm.nr_hugepages=N");
  }
  // Since Linux 6.1, memory can be collapsed into huge pages regardless of the settings.
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
      fix);
}

Findings SharedMemory(const SystemView& view) {
  constexpr uint64_t kEnough = uint64_t{512} << 20;
  const std::optional<uint64_t> bytes = view.FilesystemBytes("/dev/shm");
  if (!bytes) return NotApplicable("/dev/shm is missing, or its size is unknown");
  if (*bytes >= kEnough) return Ok(FormatBytes(*bytes));
  return Warning("/dev/shm has " + FormatBytes(*bytes),
                 "kvxfer does not use it, but NCCL and engine workers on this host fail (SIGBUS)",
                 "docker: --shm-size=8g; in a pod: an emptyDir of medium Memory at /dev/shm");
}

}  // namespace

std::optional<bool> HasCapability(const SystemView& view, int number) {
  const std::string text = view.files().Read("/proc/self/status").value_or("");
  const size_t at = text.find("CapEff:");
  if (at == std::string::npos) return std::nullopt;
  const std::vector<std::string> words =
      absl::StrSplit(text.substr(at), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  uint64_t mask = 0;
  if (words.size() < 2 || !absl::SimpleHexAtoi(words[1], &mask)) return std::nullopt;
  return ((mask >> number) & 1) != 0;
}

std::span<const Check> RightsChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"memlock", "/proc/self/limits", &MemoryLock},
      {"ipc-lock", "/proc/self/status", &IpcLock},
      {"device-files", "/dev/infiniband, /sys/class/infiniband_verbs/*/ibdev", &DeviceFiles},
      {"open-files", "/proc/self/limits", &OpenFiles},
      {"processes", "/proc/self/limits, /sys/fs/cgroup/pids.max", &Processes},
  });
  return kChecks;
}

std::span<const Check> MemoryChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"huge-pages", "/proc/meminfo, /sys/kernel/mm/transparent_hugepage", &HugePages},
      {"dev-shm", "size of /dev/shm", &SharedMemory},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
