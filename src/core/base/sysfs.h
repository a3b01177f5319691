// Reads small files below a root folder that looks like /, with sys/ and proc/ in it. The root is /
// on a live host, or a folder of plain files and links that was copied from a host or made for a
// test.
//
// Thread-safety: const; any thread. Nothing here reports an error: a file that does not exist or
// may not be read is empty, because a kernel or container may lack any of them.

#ifndef KVXFER_CORE_BASE_SYSFS_H_
#define KVXFER_CORE_BASE_SYSFS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace kvxfer {

class Sysfs {
 public:
  // If `asked` is given, every path that is read is appended to it. It must outlive this object,
  // and then only one thread at a time may use the object.
  explicit Sysfs(std::string root = "/", std::vector<std::string>* asked = nullptr);

  const std::string& root() const { return root_; }
  // InvalidArgument, with the root's name, unless the root is a folder that contains a folder sys/.
  absl::Status Check() const;

  // `path` is absolute below the root, e.g. "/sys/class/net". Returns at most 1 MiB of the file, up
  // to the first NUL (copies of sysfs files are padded with NULs) and without surrounding white
  // space.
  std::optional<std::string> Read(std::string_view path) const;
  // The whole file as one number: decimal, or hexadecimal with 0x.
  std::optional<int64_t> ReadInt(std::string_view path) const;
  bool Exists(std::string_view path) const;
  // The names in a folder, sorted by NaturalLess: mlx5_2 before mlx5_10.
  std::vector<std::string> List(std::string_view path) const;
  // The path with every link resolved, as a path below the root. Empty: nothing there, or outside.
  std::string Resolve(std::string_view path) const;
  // The last component of the target of the link at `path`, whether or not the target exists: the
  // name of a driver, a PCI address. Empty: not a link.
  std::string LinkName(std::string_view path) const;
  // `path` with the root in front, as any program can open it.
  std::string Full(std::string_view path) const;

 private:
  void Note(std::string_view path) const;

  std::string root_;  // without a trailing slash; empty: /
  std::vector<std::string>* asked_;
};

// True if `a` comes before `b` when runs of digits are compared as numbers.
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_SYSFS_H_
