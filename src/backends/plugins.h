// Loads plugins, and explains why a plugin cannot be used. See kvxfer/plugin.h.
//
// Thread-safety: any thread; a file that is loaded already is not loaded again. A loaded plugin
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

// Loads the plugin of backend `name` from the file `path`. Unavailable: it cannot be used here; the
// error says which file, why, and what to do.
absl::StatusOr<const BackendPlugin*> LoadPlugin(std::string_view name, const std::string& path);

// OK: a plugin that describes itself like this is a plugin for backend `name` and for this program.
absl::Status CheckPlugin(const BackendPlugin& plugin, std::string_view name,
                         const std::string& path);

// Makes the plugin's backend. Internal: the plugin breaks the rules of kvxfer/plugin.h.
absl::StatusOr<std::unique_ptr<Backend>> MakePluginBackend(const BackendPlugin& plugin,
                                                           const std::string& path,
                                                           const BackendContext& context);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_PLUGINS_H_
