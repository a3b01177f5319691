#include "src/backends/plugin_files.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "libkvxfer_backend_";
constexpr std::string_view kSuffix = ".so";

// The folder of the shared library, or else of the program, that contains this function. Empty if
// unknown.
fs::path OwnFolder() {
  Dl_info info{};
  void* extra = nullptr;
  fs::path file = "/proc/self/exe";
  // dli_fname of a program is the name by which it was called, which may be relative. The link map
  // of the program has an empty name and a library's has an absolute path, so it distinguishes the
  // two.
  if (dladdr1(reinterpret_cast<const void*>(&OwnFolder), &info, &extra, RTLD_DL_LINKMAP) != 0 &&
      extra != nullptr && static_cast<const link_map*>(extra)->l_name[0] == '/') {
    file = static_cast<const link_map*>(extra)->l_name;
  }
  std::error_code error;
  file = fs::canonical(file, error);
  return error ? fs::path() : file.parent_path();
}

std::string FileName(std::string_view name) {
  std::string file(kPrefix);
  file += name;
  file += kSuffix;
  return file;
}

// The backend whose plugin has this file name; empty: it is not a plugin's name.
std::string_view BackendOf(std::string_view file) {
  if (!file.starts_with(kPrefix) || !file.ends_with(kSuffix)) return {};
  if (file.size() < kPrefix.size() + kSuffix.size()) return {};
  file = file.substr(kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size());
  return IsBackendName(file) ? file : std::string_view();
}

// The files in a folder. A folder that is missing or unreadable has none.
std::vector<std::string> List(const std::string& folder) {
  std::vector<std::string> files;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), &closedir);
  if (open == nullptr) return files;
  while (const dirent* const entry = readdir(open.get())) files.emplace_back(entry->d_name);
  return files;
}

absl::Status CheckFolder(const std::string& folder) {
  struct stat info {};
  int error = stat(folder.c_str(), &info) == 0 ? 0 : errno;
  if (error == 0 && !S_ISDIR(info.st_mode)) error = ENOTDIR;
  if (error == 0) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(ErrnoText(absl::StrCat("the folder \"", folder, "\" for plugins"), error),
                   "; correct AgentOptions::plugin_path (KVXFER_PLUGIN_PATH)"));
}

}  // namespace

bool IsBackendName(std::string_view name) {
  return !name.empty() && name.size() <= 64 && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

std::vector<std::string> PluginFolders(const AgentOptions& options) {
  std::vector<std::string> folders;
  const auto add = [&folders](const fs::path& folder) {
    std::string text = folder.lexically_normal().string();
    if (std::ranges::find(folders, text) == folders.end()) folders.push_back(std::move(text));
  };
  for (const std::string& folder : options.plugin_path) add(folder);
  if (const fs::path own = OwnFolder(); !own.empty()) {
    // Beside a library: lib/kvxfer. Beside a program this would be the program file itself, hence
    // the check.
    std::error_code error;
    if (fs::is_directory(own / "kvxfer", error)) add(own / "kvxfer");
    // A package that keeps all its files under one folder, as the Python package does.
    if (fs::is_directory(own / "lib" / "kvxfer", error)) add(own / "lib" / "kvxfer");
    add(own.parent_path() / "lib" / "kvxfer");
    // A distribution whose library folder is deeper (Debian: lib/x86_64-linux-gnu).
    if (fs::path(KVXFER_INSTALL_LIBDIR).is_relative()) {
      add(own.parent_path() / KVXFER_INSTALL_LIBDIR / "kvxfer");
    }
  }
  add(KVXFER_INSTALL_PLUGIN_DIR);
  return folders;
}

absl::StatusOr<std::string> FindPlugin(std::string_view name, const AgentOptions& options) {
  // Only folders that the application named must exist.
  for (const std::string& folder : options.plugin_path) {
    if (auto status = CheckFolder(folder); !status.ok()) return status;
  }
  const std::vector<std::string> folders = PluginFolders(options);
  const std::string file = FileName(name);
  for (const std::string& folder : folders) {
    std::string path = absl::StrCat(folder, "/", file);
    struct stat info {};
    if (stat(path.c_str(), &info) == 0) return path;
  }
  return absl::NotFoundError(absl::StrCat("no ", file, " in ", absl::StrJoin(folders, ", ")));
}

std::vector<PluginFile> FindPlugins(const AgentOptions& options) {
  std::map<std::string, std::string> found;
  for (const std::string& folder : PluginFolders(options)) {
    for (const std::string& file : List(folder)) {
      const std::string_view name = BackendOf(file);
      if (!name.empty()) found.emplace(name, absl::StrCat(folder, "/", file));
    }
  }
  std::vector<PluginFile> files;
  files.reserve(found.size());
  for (auto& [name, path] : found) files.push_back({name, path});
  return files;
}

}  // namespace kvxfer
