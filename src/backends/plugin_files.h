// Finds plugins: files libkvxfer_backend_<name>.so in a few folders. The first folder that has a
// file wins.
//
// Thread-safety: functions without state; any thread.

#ifndef KVXFER_BACKENDS_PLUGIN_FILES_H_
#define KVXFER_BACKENDS_PLUGIN_FILES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/options.h"

namespace kvxfer {

struct PluginFile {
  std::string name{};  // of the backend
  std::string path{};
};

// Whether `name` is a valid backend name: lower-case letters, digits and underscores.
bool IsBackendName(std::string_view name);

// In order: AgentOptions::plugin_path, the folders beside the library or program that contains this
// code, and the folder where kvxfer was installed.
std::vector<std::string> PluginFolders(const AgentOptions& options);

// The file of backend `name`. NotFound: there is none; the error lists the folders that were
// searched. Unavailable: a folder of plugin_path cannot be read.
absl::StatusOr<std::string> FindPlugin(std::string_view name, const AgentOptions& options);

// All plugins, sorted by name.
std::vector<PluginFile> FindPlugins(const AgentOptions& options);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_PLUGIN_FILES_H_
