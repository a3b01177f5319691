// Sysfs trees made of files and links, for described hosts, and copies of parts of a tree, for a
// look at them on another host.

#ifndef KVXFER_CLI_TOPO_SYSFS_TREE_H_
#define KVXFER_CLI_TOPO_SYSFS_TREE_H_

#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/base/sysfs.h"

namespace kvxfer::cli {

absl::Status CannotWrite(const std::string& path, const std::error_code& error);

// Paths are absolute below the tree's root: "/sys/class/net/eth0/mtu".
class SysfsTree {
 public:
  // A file with `text` and a newline, as the kernel writes them.
  void File(const std::string& path, const std::string& text) { files_[path] = text + "\n"; }
  void Folder(const std::string& path) { folders_[path] = true; }
  // A link to `target`, an absolute path below the root; WriteTo makes it relative.
  void Link(const std::string& path, const std::string& target) { links_[path] = target; }
  // Removes the entry at `path` and all entries below it.
  void Remove(const std::string& path);

  // `root` is an existing folder. Internal: it cannot be written.
  absl::Status WriteTo(const std::string& root) const;

 private:
  std::map<std::string, std::string> files_;
  std::map<std::string, std::string> links_;
  std::map<std::string, bool> folders_;
};

// A folder in /dev/shm, or else in the folder for temporary files. The destructor removes it with
// its contents.
class TemporaryFolder {
 public:
  static absl::StatusOr<TemporaryFolder> Make();
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) {
    other.path_.clear();
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;  // empty: moved from
};

// Copies the file or folder at each of `paths`, a folder without its contents, and each link on the
// way as a link. Files are read to their end, whatever size they claim. A device file becomes an
// empty file. For a path that does not exist, the folder that would contain it is created. `to` is
// created, or is an empty folder. FailedPrecondition: it is not empty. Internal: it cannot be
// written.
absl::Status CopySysfs(const Sysfs& from, const std::vector<std::string>& paths,
                       const std::string& to);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_SYSFS_TREE_H_
