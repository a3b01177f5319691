// Checks of host memory: huge pages, shared memory.

#include <array>

#include "absl/strings/str_split.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

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

std::span<const Check> MemoryChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"huge-pages", "/proc/meminfo, /sys/kernel/mm/transparent_hugepage", &HugePages},
      {"dev-shm", "size of /dev/shm", &SharedMemory},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
