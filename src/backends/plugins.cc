#include "src/backends/plugins.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr PluginHost kHost{.log_enabled = &LogEnabled, .log_line = &PostLogLine};

// Turns the text of dlerror() into a cause and what to do.
absl::Status Explain(const std::string& path, std::string_view error) {
  const absl::string_view text = ToAbsl(error);
  constexpr absl::string_view kMissing = ": cannot open shared object file: No such file";
  const size_t missing = text.find(kMissing);
  if (missing != absl::string_view::npos && !absl::StartsWith(text, path)) {
    return absl::UnavailableError(
        absl::StrCat(text.substr(0, missing), " not found, which ", path,
                     " needs; install it, or name its folder in LD_LIBRARY_PATH"));
  }
  const char* remedy = "see what the loader says: LD_DEBUG=libs";
  for (const char* sign : {"invalid ELF header", "file too short", "wrong ELF class", "ELF file",
                           "file data", "ELF load command"}) {
    if (absl::StrContains(text, sign)) {
      remedy = "it is not a shared library of this machine: install the plugin anew";
    }
  }
  for (const char* sign : {"undefined symbol", "version `"}) {
    if (absl::StrContains(text, sign)) {
      remedy = "a library that it needs is of another version: build or install both anew";
    }
  }
  // Most messages begin with the file's name.
  absl::string_view why = text;
  if (absl::ConsumePrefix(&why, path)) absl::ConsumePrefix(&why, ": ");
  return absl::UnavailableError(absl::StrCat(path, " cannot be loaded: ", why, "; ", remedy));
}

std::string OrNothing(const char* text) { return text == nullptr ? "" : text; }

}  // namespace

absl::Status CheckPlugin(const BackendPlugin& plugin, std::string_view name,
                         const std::string& path) {
  const auto refuse = [&path](const auto&... why) {
    return absl::UnavailableError(absl::StrCat(path, ": ", why...));
  };
  if (plugin.magic != kPluginMagic) {
    return refuse("it is no plugin of kvxfer, though it has a function ", kPluginEntry,
                  "; remove it, or install the plugin anew");
  }
  const std::string version = OrNothing(plugin.kvxfer_version);
  if (plugin.abi != kPluginAbi || plugin.bytes != sizeof(BackendPlugin) || version != kVersion) {
    return refuse("it is for kvxfer ", version, " (plugin interface ", plugin.abi, "), this is ",
                  kVersion, " (", kPluginAbi, "); install the plugin of the same version");
  }
  const std::string toolchain = OrNothing(plugin.toolchain);
  if (toolchain != PluginToolchain()) {
    return refuse("it was built with another toolchain (", toolchain, ") than this (",
                  PluginToolchain(), "); build both with one, from the same sources");
  }
  const std::string its_name = OrNothing(plugin.name);
  if (its_name != name) {
    return refuse("it is the plugin of backend \"", its_name,
                  "\"; call the file libkvxfer_backend_", its_name, ".so");
  }
  if (plugin.make == nullptr || plugin.use_host == nullptr) {
    return refuse("it has no factory; make it by KVXFER_BACKEND_PLUGIN (kvxfer/plugin.h)");
  }
  return absl::OkStatus();
}

absl::StatusOr<const BackendPlugin*> LoadPlugin(std::string_view name, const std::string& path) {
  // RTLD_NODELETE: never closed, because the library's threads and fork handlers may remain.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return Explain(path, OrNothing(dlerror()));
  const auto entry = reinterpret_cast<const BackendPlugin* (*)()>(dlsym(library, kPluginEntry));
  if (entry == nullptr) {
    return absl::UnavailableError(absl::StrCat(path, " is no plugin of kvxfer: it has no function ",
                                               kPluginEntry,
                                               "; remove it, or install the plugin anew"));
  }
  const BackendPlugin* const plugin = entry();
  if (plugin == nullptr) {
    return absl::UnavailableError(absl::StrCat(path, " says nothing of itself; install it anew"));
  }
  if (auto status = CheckPlugin(*plugin, name, path); !status.ok()) return status;
  // The plugin has its own hidden copy of the core; this makes it log through the program's logger.
  plugin->use_host(kHost);
  return plugin;
}

absl::StatusOr<std::unique_ptr<Backend>> MakePluginBackend(const BackendPlugin& plugin,
                                                           const std::string& path,
                                                           const BackendContext& context) {
  absl::StatusOr<std::unique_ptr<Backend>> made(nullptr);
  // A plugin may use exceptions internally. They must not propagate into kvxfer, which does not
  // handle them.
  try {
    made = plugin.make(context);
  } catch (...) {
    return absl::InternalError(absl::StrCat(path, ": its factory threw an exception"));
  }
  if (!made.ok()) return made;
  if (*made == nullptr) return absl::InternalError(absl::StrCat(path, " made no backend"));
  // Peers find a backend by its name, so it must be the name of the plugin.
  if ((*made)->name() != plugin.name) {
    return absl::InternalError(absl::StrCat(path, ": its backend calls itself \"",
                                            ToAbsl((*made)->name()), "\", not \"", plugin.name,
                                            "\""));
  }
  return made;
}

}  // namespace kvxfer
