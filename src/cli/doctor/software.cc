// Checks of software: access between processes of this host, libraries, backends.

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/str_join.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

constexpr int kCapSysPtrace = 19;  // linux/capability.h

bool InContainer(const SystemView& view) {
  for (const char* mark : {"/.dockerenv", "/run/.containerenv", "/var/run/secrets/kubernetes.io"}) {
    if (view.files().Exists(mark)) return true;
  }
  return false;
}

// Cross-memory attach needs permission to trace the other process.
Findings Yama(const SystemView& view) {
  const auto scope = view.files().ReadInt("/proc/sys/kernel/yama/ptrace_scope");
  if (!view.files().Exists("/proc/sys/kernel")) return NotApplicable("the tree has no /proc/sys");
  if (!scope) return Ok("no Yama: processes of one user reach each other");
  const std::string text = absl::StrCat("kernel.yama.ptrace_scope is ", *scope);
  if (*scope == 0) return Ok(text);
  if (*scope < 3 && HasCapability(view, kCapSysPtrace).value_or(false))
    return Ok(text + ", and this process has SYS_PTRACE");
  return Warning(
      text,
      "shm cannot attach to memory that was not allocated with HostBuffer: its transfers "
      "between processes of this host go over tcp",
      *scope == 3 ? "boot without it (3 cannot be changed), or use HostBuffer"
                  : "sysctl kernel.yama.ptrace_scope=0; or prctl(PR_SET_PTRACER) in the "
                    "peer, --cap-add=SYS_PTRACE, or HostBuffer");
}

Findings SameHost(const SystemView& view) {
  if (!InContainer(view)) return Ok("not in a container");
  if (!HasOwnProcesses(view)) return Ok("in a container with the host's processes");
  return Warning(
      "in a container with its own processes",
      "shm only reaches processes of this container; tcp reaches other processes of this "
      "host",
      "docker: --pid=host --network=host; in a pod: hostPID and hostNetwork, or one pod "
      "for both");
}

bool HasLibraries(const SystemView& view) { return view.files().Exists("/usr/lib"); }

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

// The version that the library reports, or else the numbers in its file's name.
std::string VersionOf(const SystemView& view, const std::string& soname, const std::string& file) {
  std::string reported = view.LibraryVersion(soname);
  if (!reported.empty()) return reported;
  const size_t at = file.rfind(".so.");
  return at == std::string::npos ? "" : file.substr(at + 4);
}

// The provider in user space that the device's kernel driver needs.
std::string ProviderOf(const RdmaDevice& device) {
  if (device.driver == "mlx5_core") return "mlx5";
  if (device.driver == "mlx4_core") return "mlx4";
  if (device.driver == "efa") return "efa";
  if (!device.pci && device.name.starts_with("rxe")) return "rxe";
  return {};
}

Findings Verbs(const SystemView& view) {
  const bool wanted = !view.topology().devices.empty();
  const std::string library = FindLibrary(view, "libibverbs.so.1");
  const std::string fix = "apt install libibverbs1 ibverbs-providers (or rdma-core)";
  if (library.empty()) {
    if (!HasLibraries(view)) return NotApplicable("the tree has no libraries");
    if (!wanted) return NotApplicable("not installed; no RDMA device needs it");
    return Problem("libibverbs is not installed", "no RDMA device can be used", fix);
  }
  const std::set<std::string> providers =
      NamesBetween(view, FolderOf(library) + "/libibverbs", "lib", "-rdmav");
  // How pinned pages behave in a process that forks; on older kernels kvxfer calls ibv_fork_init.
  const char* const fork = view.KernelAtLeast(5, 12) ? "the kernel copies pinned pages"
                                                     : "children do not get pinned pages";
  const std::string what = absl::StrCat(
      "libibverbs ", VersionOf(view, "libibverbs.so.1", library),
      "; providers: ", providers.empty() ? "none" : Names({providers.begin(), providers.end()}),
      "; fork: ", fork);
  std::set<std::string> missing;
  for (const RdmaDevice& device : view.topology().devices) {
    const std::string provider = ProviderOf(device);
    if (!provider.empty() && !providers.contains(provider)) missing.insert(provider);
  }
  if (missing.empty()) return Ok(what);
  return Problem(what + "; missing: " + absl::StrJoin(missing, " "),
                 "libibverbs does not find devices that the kernel has", fix);
}

bool HasEfa(const SystemView& view) {
  return std::ranges::find(view.topology().ports, LinkLayer::kEfa, &RdmaPort::link) !=
         view.topology().ports.end();
}

Findings Libfabric(const SystemView& view) {
  const std::string library = FindLibrary(view, "libfabric.so.1");
  const std::string fix =
      "the EFA installer (aws-efa-installer), or apt install libfabric1; then fi_info -p efa";
  if (library.empty()) {
    if (!HasLibraries(view)) return NotApplicable("the tree has no libraries");
    if (!HasEfa(view)) return NotApplicable("not installed; no EFA device needs it");
    return Problem("libfabric is not installed", "EFA is used through libfabric only", fix);
  }
  const std::set<std::string> providers =
      NamesBetween(view, FolderOf(library) + "/libfabric", "lib", "-fi.so");
  return Ok(absl::StrCat("libfabric ", VersionOf(view, "libfabric.so.1", library), "; providers: ",
                         providers.empty() ? "built in" : absl::StrJoin(providers, " ")));
}

Findings Ucx(const SystemView& view) {
  const std::string library = FindLibrary(view, "libucp.so.0");
  if (library.empty()) return NotApplicable("not installed");
  const std::set<std::string> transports =
      NamesBetween(view, FolderOf(library) + "/ucx", "libuct_", ".so");
  const std::string what =
      absl::StrCat("UCX ", VersionOf(view, "libucp.so.0", library), "; transports: ",
                   transports.empty() ? "tcp and shared memory" : absl::StrJoin(transports, " "));
  if (transports.contains("ib") || view.topology().devices.empty()) return Ok(what);
  return Warning(what + "; ib is missing", "UCX does not use the RDMA devices of this host",
                 "install a UCX that was built with rdma-core: ucx_info -d | grep Transport");
}

Findings Backends(const SystemView& view) {
  const std::vector<BackendState> backends = view.Backends();
  if (backends.empty()) return NotApplicable("not checked: --root shows another host");
  std::vector<std::string> usable;
  std::vector<std::string> others;
  for (const BackendState& backend : backends) {
    if (backend.usable) usable.push_back(backend.name);
    if (!backend.usable) others.push_back(absl::StrCat(backend.name, " (", backend.why, ")"));
  }
  const std::string what = absl::StrCat(
      absl::StrJoin(usable, " "),
      others.empty() ? "" : absl::StrCat("; not usable: ", absl::StrJoin(others, "; ")));
  if (usable.empty()) {
    return Problem("no backend is usable: " + absl::StrJoin(others, "; "),
                   "no transfer is possible", "follow what each backend says");
  }
  return Ok(what);
}

}  // namespace

std::set<std::string> NamesBetween(const SystemView& view, const std::string& folder,
                                   const std::string& prefix, const std::string& suffix) {
  std::set<std::string> names;
  for (const std::string& name : view.files().List(folder)) {
    const size_t end = name.find(suffix);
    if (name.starts_with(prefix) && end != std::string::npos) {
      names.insert(name.substr(prefix.size(), end - prefix.size()));
    }
  }
  return names;
}

bool HasOwnProcesses(const SystemView& view) {
  const std::string first = view.files().Read("/proc/1/comm").value_or("");
  return InContainer(view) && first != "systemd" && first != "init";
}

std::string FindLibrary(const SystemView& view, const std::string& soname) {
  for (const char* folder :
       {"/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib",
        "/usr/local/lib", "/opt/amazon/efa/lib64", "/opt/amazon/efa/lib", "/opt/hpcx/ucx/lib"}) {
    std::string real = view.files().Resolve(absl::StrCat(folder, "/", soname));
    if (!real.empty()) return real;
  }
  return {};
}

std::span<const Check> SoftwareChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"yama", "/proc/sys/kernel/yama/ptrace_scope, /proc/self/status", &Yama},
      {"same-host", "/proc/self/status, /proc/1/comm, /.dockerenv", &SameHost},
      {"libibverbs", "libibverbs.so.1 and its providers, /proc/sys/kernel/osrelease", &Verbs},
      {"libfabric", "libfabric.so.1 and its providers", &Libfabric},
      {"ucx", "libucp.so.0 and its transports", &Ucx},
      {"backends", "the backends of kvxfer, each created once", &Backends},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
