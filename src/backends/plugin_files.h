// Where plugins are: libkvxfer_backend_<name>.so in a few folders, of which the first that has it
// counts.
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

// Letters, digits and underscores, all small: what a backend may be called.
bool IsBackendName(std::string_view name);

// AgentOptions::plugin_path, then what lies beside the library or program that this is in, then
// where kvxfer was installed.
std::vector<std::string> PluginFolders(const AgentOptions& options);

// The file of backend `name`. NotFound: there is none, and which folders were looked through.
// Unavailable: a folder of plugin_path cannot be read.
absl::StatusOr<std::string> FindPlugin(std::string_view name, const AgentOptions& options);

// All there are, by name.
std::vector<PluginFile> FindPlugins(const AgentOptions& options);

}  // namespace kvxfer

#endif  // KVXFER_BACKENDS_PLUGIN_FILES_H_
