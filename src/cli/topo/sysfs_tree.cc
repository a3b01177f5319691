#include "src/cli/topo/sysfs_tree.h"

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

namespace fs = std::filesystem;

template <typename Value>
void RemoveBelow(const std::string& path, std::map<std::string, Value>& entries) {
  std::erase_if(entries, [&](const auto& entry) {
    return entry.first == path || entry.first.starts_with(path + "/");
  });
}

}  // namespace

absl::Status CannotWrite(const std::string& path, const std::error_code& error) {
  return absl::InternalError(absl::StrCat("cannot write ", path, ": ", error.message()));
}

void SysfsTree::Remove(const std::string& path) {
  RemoveBelow(path, files_);
  RemoveBelow(path, links_);
  RemoveBelow(path, folders_);
}

absl::Status SysfsTree::WriteTo(const std::string& root) const {
  std::error_code error;
  for (const auto& [path, unused] : folders_) {
    fs::create_directories(root + path, error);
    if (error) return CannotWrite(root + path, error);
  }
  for (const auto& [path, text] : files_) {
    fs::create_directories(fs::path(root + path).parent_path(), error);
    if (error) return CannotWrite(root + path, error);
    std::ofstream file(root + path, std::ios::binary);
    file << text;
    if (!file.flush()) return CannotWrite(root + path, {errno, std::generic_category()});
  }
  for (const auto& [path, target] : links_) {
    const fs::path folder = fs::path(path).parent_path();
    fs::create_directories(root + folder.string(), error);
    if (!error) fs::create_symlink(fs::path(target).lexically_relative(folder), root + path, error);
    if (error) return CannotWrite(root + path, error);
  }
  return absl::OkStatus();
}

absl::StatusOr<TemporaryFolder> TemporaryFolder::Make() {
  std::error_code error;
  const fs::path base = fs::temp_directory_path(error);
  // In memory if possible, because there are hundreds of tiny files.
  std::string path;
  for (const fs::path& folder : {fs::path("/dev/shm"), error ? fs::path("/tmp") : base}) {
    path = folder / "kvxfer-XXXXXX";
    if (mkdtemp(path.data()) != nullptr) return TemporaryFolder(std::move(path));
  }
  return absl::FailedPreconditionError(
      ErrnoText(absl::StrCat("cannot make a temporary folder ", path), errno));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) fs::remove_all(path_, ignored);
}

}  // namespace kvxfer::cli
