// MakeBackend: makes a backend from its name, with the faulty: decorator if the name has it.

#include "src/backends/registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvxfer/backend.h"
#include "src/backends/builtin_backends.h"
#include "src/backends/faulty/factory.h"
#include "src/backends/plugin_files.h"
#include "src/backends/plugins.h"
#include "src/core/base/strings.h"
#include "src/core/base/sysfs.h"
#include "src/transport/host/sysfs_device.h"

namespace kvxfer {
namespace {

constexpr std::string_view kFaultyPrefix = "faulty:";

constexpr std::array kKnown = {
    KnownBackend{.name = "loopback"},
    // Accepts GPU memory only, and no other backend has a shorter path for it.
    KnownBackend{.name = "cuda_ipc"},
    KnownBackend{.name = "shm"},
    KnownBackend{.name = "verbs"},
    KnownBackend{.name = "ucx",
                 .by_default = ByDefault::kNever,
                 .remedy = "it is built where UCX's headers are (apt install libucx-dev)"},
    KnownBackend{.name = "libfabric",
                 .by_default = ByDefault::kOnEfa,
                 .remedy = "it is built where libfabric's headers are (apt install libfabric-dev)"},
    KnownBackend{.name = "tcp"},
};

const KnownBackend* FindKnown(std::string_view name) {
  const auto it = std::ranges::find(kKnown, name, &KnownBackend::name);
  return it == kKnown.end() ? nullptr : &*it;
}

const BuiltinBackend* FindBuiltin(std::string_view name) {
  const auto all = BuiltinBackends();
  const auto it = std::ranges::find(all, name, &BuiltinBackend::name);
  return it == all.end() ? nullptr : &*it;
}

absl::Status Unknown(std::string_view name, const AgentOptions& options) {
  std::string known;
  for (const BackendOrigin& origin : ListBackends(options)) {
    const bool here = origin.built_in || !origin.file.empty();
    absl::StrAppend(&known, known.empty() ? "" : ", ", origin.name, here ? "" : " (not here)");
  }
  return absl::NotFoundError(absl::StrCat("no backend \"", ToAbsl(name), "\"; known: ", known,
                                          ", and faulty:<one of these>"));
}

// For a backend that is not built in.
absl::StatusOr<std::unique_ptr<Backend>> MakeFromPlugin(std::string_view name,
                                                        const BackendContext& context) {
  const absl::StatusOr<std::string> path = FindPlugin(name, context.options);
  if (absl::IsNotFound(path.status())) {
    const KnownBackend* const known = FindKnown(name);
    if (known == nullptr) return Unknown(name, context.options);
    return absl::UnimplementedError(absl::StrCat(
        path.status().message(), known->remedy.empty() ? "" : "; ", ToAbsl(known->remedy)));
  }
  if (!path.ok()) return path.status();
  const absl::StatusOr<const BackendPlugin*> plugin = LoadPlugin(name, *path);
  if (!plugin.ok()) return plugin.status();
  return MakePluginBackend(**plugin, *path, context);
}

}  // namespace

std::span<const KnownBackend> KnownBackends() { return kKnown; }

bool IsBuiltIn(std::string_view name) { return FindBuiltin(name) != nullptr; }

std::vector<std::string> KnownBackendNames() {
  std::vector<std::string> names;
  for (const KnownBackend& known : kKnown) names.emplace_back(known.name);
  for (const BuiltinBackend& backend : BuiltinBackends()) {
    if (FindKnown(backend.name) == nullptr) names.emplace_back(backend.name);
  }
  return names;
}

std::vector<std::string> DefaultBackends() {
  std::vector<std::string> names;
  for (const KnownBackend& known : kKnown) {
    const bool on_efa = known.by_default == ByDefault::kOnEfa;
    if (known.by_default == ByDefault::kAlways || (on_efa && HasEfaDevice())) {
      names.emplace_back(known.name);
    }
  }
  return names;
}

bool HasEfaDevice(const std::string& root) {
  constexpr std::string_view kDevices = "/sys/class/infiniband";
  const Sysfs sysfs(root);
  return std::ranges::any_of(sysfs.List(kDevices), [&](const std::string& device) {
    return sysfs.ReadInt(absl::StrCat(ToAbsl(kDevices), "/", device, "/device/vendor")) ==
           kPciVendorAmazon;
  });
}

std::vector<BackendOrigin> ListBackends(const AgentOptions& options) {
  std::vector<BackendOrigin> origins;
  origins.reserve(kKnown.size());
  for (const KnownBackend& known : kKnown) {
    origins.push_back({.name = std::string(known.name), .built_in = IsBuiltIn(known.name)});
  }
  // Backends that exist only in the list KVXFER_BACKENDS of CMake.
  for (const BuiltinBackend& backend : BuiltinBackends()) {
    if (FindKnown(backend.name) == nullptr) {
      origins.push_back({.name = std::string(backend.name), .built_in = true});
    }
  }
  for (PluginFile& file : FindPlugins(options)) {
    const auto it = std::ranges::find(origins, file.name, &BackendOrigin::name);
    if (it == origins.end()) {
      origins.push_back({.name = std::move(file.name), .file = std::move(file.path)});
    } else if (!it->built_in) {
      it->file = std::move(file.path);
    }
  }
  return origins;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name,
                                                     const BackendContext& context) {
  const bool faulty = name.starts_with(kFaultyPrefix);
  const std::string_view plain = faulty ? name.substr(kFaultyPrefix.size()) : name;
  const BuiltinBackend* const builtin = FindBuiltin(plain);
  if (builtin == nullptr && !IsBackendName(plain)) return Unknown(name, context.options);
  auto made = builtin != nullptr ? builtin->make(context) : MakeFromPlugin(plain, context);
  if (builtin == nullptr && absl::IsNotFound(made.status())) return made;
  if (!made.ok()) return WithName(made.status(), name);
  return faulty ? MakeFaultyBackend(*std::move(made), context) : std::move(made);
}

}  // namespace kvxfer
