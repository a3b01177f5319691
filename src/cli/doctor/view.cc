#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "kvxfer/agent.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/doctor/doctor.h"
#include "src/core/base/strings.h"
#include "src/cuda/pinned.h"

namespace kvxfer::cli {
namespace {

absl::Status NotThere(const std::string& path) {
  return absl::NotFoundError(path + " does not exist");
}

std::vector<std::string> PluginPath() {
  const absl::StatusOr<AgentOptions> options = OptionsFromEnvironment();
  return options.ok() ? options->plugin_path : std::vector<std::string>();
}

class TreeView final : public SystemView {
 public:
  using SystemView::SystemView;

  absl::Status MayOpen(const std::string& path) const override {
    struct stat info {};
    if (stat(files().Full(path).c_str(), &info) != 0) return NotThere(path);
    constexpr mode_t kAll = S_IROTH | S_IWOTH;
    if ((info.st_mode & kAll) == kAll) return absl::OkStatus();
    return absl::PermissionDeniedError(path + " is not open to all users");
  }
  std::optional<uint64_t> FilesystemBytes(const std::string&) const override { return {}; }
  std::string LibraryVersion(const std::string&) const override { return {}; }
  std::vector<BackendState> Backends() const override { return {}; }
  const CudaState& Cuda() const override { return cuda_; }

 private:
  const CudaState cuda_{};  // not asked
};

// The library stays loaded, because some libraries break when they are unloaded.
void* Symbol(const std::string& soname, const char* name) {
  void* library = dlopen(soname.c_str(), RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
  return library == nullptr ? nullptr : dlsym(library, name);
}

class LiveView final : public SystemView {
 public:
  explicit LiveView(Topology topology) : SystemView(Sysfs("/"), std::move(topology)) {
    // Once loaded, UCX would intercept memory calls, which crashes under a sanitizer, and catch
    // signals.
    setenv("UCX_MEM_EVENTS", "no", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
  }

  absl::Status MayOpen(const std::string& path) const override {
    if (access(path.c_str(), F_OK) != 0) return NotThere(path);
    if (access(path.c_str(), R_OK | W_OK) == 0) return absl::OkStatus();
    return absl::PermissionDeniedError(ErrnoText(path, errno));
  }

  std::optional<uint64_t> FilesystemBytes(const std::string& path) const override {
    struct statvfs info {};
    if (statvfs(path.c_str(), &info) != 0) return std::nullopt;
    return uint64_t{info.f_blocks} * info.f_frsize;
  }

  std::string LibraryVersion(const std::string& soname) const override {
    if (soname == "libucp.so.0") {
      auto* version = reinterpret_cast<const char* (*)()>(Symbol(soname, "ucp_get_version_string"));
      return version == nullptr ? "" : version();
    }
    if (soname == "libfabric.so.1") {
      auto* version = reinterpret_cast<uint32_t (*)()>(Symbol(soname, "fi_version"));
      return version == nullptr ? ""
                                : absl::StrFormat("%d.%d", version() >> 16, version() & 0xffff);
    }
    return {};
  }

  std::vector<BackendState> Backends() const override {
    std::vector<BackendState> states;
    for (const BackendOrigin& backend : AllBackends()) states.push_back(StateOf(backend));
    return states;
  }

  const CudaState& Cuda() const override {
    constexpr Duration kLongest = std::chrono::seconds(15);
    if (!cuda_.asked) cuda_ = AskWithin(kLongest, &AskCuda);
    return cuda_;
  }

 private:
  static BackendState StateOf(const BackendOrigin& backend) {
    const std::string& name = backend.name;
    if (!IsHere(backend)) return {.name = name, .usable = false, .why = "not installed"};
    AgentOptions options;
    options.name = "doctor";
    options.backends = {name};
    options.plugin_path = PluginPath();
    const auto agent = Agent::Create(options);
    return {.name = name,
            .usable = agent.ok(),
            .why = agent.ok() ? "" : WithoutName(ToStd(agent.status().message()), name)};
  }

  mutable CudaState cuda_;
};

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
  const auto memory = CacheMemory::Allocate(MemorySource::kAttached, kPinned);
  if (!memory.ok()) return memory.status();
  return cuda::Pinned::Pin(&driver, driver.devices().front().ordinal, memory->host_bytes().data(),
                           kPinned)
      .status();
}

}  // namespace

std::vector<BackendOrigin> AllBackends() {
  AgentOptions options;
  options.plugin_path = PluginPath();
  return ListBackends(options);
}

std::string WithoutName(std::string_view why, const std::string& backend) {
  const std::string name = backend + ": ";
  constexpr std::string_view kBackend = "backend ";
  if (why.starts_with(kBackend) && why.substr(kBackend.size()).starts_with(name)) {
    why.remove_prefix(kBackend.size());
  }
  while (why.starts_with(name)) why.remove_prefix(name.size());
  return std::string(why);
}

bool SystemView::KernelAtLeast(int major, int minor) const {
  const std::string release = files_.Read("/proc/sys/kernel/osrelease").value_or("");
  int its_major = 0;
  int its_minor = 0;
  if (std::sscanf(release.c_str(), "%d.%d", &its_major, &its_minor) != 2) return false;
  return std::pair(its_major, its_minor) >= std::pair(major, minor);
}

std::unique_ptr<SystemView> MakeLiveView(Topology topology) {
  return std::make_unique<LiveView>(std::move(topology));
}

std::unique_ptr<SystemView> MakeTreeView(Sysfs files, Topology topology) {
  return std::make_unique<TreeView>(std::move(files), std::move(topology));
}

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
