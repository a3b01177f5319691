// Loads plugins, and says of one that cannot be used why. See kvxfer/plugin.h.
//
// Thread-safety: any thread; a file that is loaded already is not loaded again. What was loaded
// stays for the life of the process.

#ifndef KVXFER_BACKENDS_PLUGINS_H_
#define KVXFER_BACKENDS_PLUGINS_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "kvxfer/plugin.h"

namespace kvxfer {

// The plugin of backend `name` in the file `path`. Unavailable: it cannot be used here; which file,
// why, and the remedy.
absl::StatusOr<const BackendPlugin*> LoadPlugin(std::string_view name, const std::string& path);

// Whether a plugin that says this of itself is one of backend `name` for this program.
absl::Status CheckPlugin(const BackendPlugin& plugin, std::string_view name,
                         const std::string& path);

// Its backend. Internal: it breaks the rules of kvxfer/plugin.h.
absl::StatusOr<std::unique_ptr<Backend>> MakePluginBackend(const BackendPlugin& plugin,
                                                           const std::string& path,
                                                           const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_PLUGINS_H_
