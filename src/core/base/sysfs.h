// Reads small files below a root folder that looks like /: it has sys/ and proc/. The root is / on
// a live host, and a folder of plain files and links where a tree was copied or made for a test.
//
// Thread-safety: const; any thread. Nothing here fails loudly: what is not there, or may not be
// read, is empty, for a kernel or a container may lack any of it.

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
  // Where `asked` is given, every path that is asked for is added to it (and then one thread at a
  // time may ask); it must outlive this.
  explicit Sysfs(std::string root = "/", std::vector<std::string>* asked = nullptr);

  const std::string& root() const { return root_; }
  // InvalidArgument, naming the root, unless it is a folder with a folder sys/ in it.
  absl::Status Check() const;

  // `path` is absolute below the root: "/sys/class/net". What is there, up to the first NUL (copies
  // of sysfs files are padded with them), without white space at its ends, up to 1 MiB.
  std::optional<std::string> Read(std::string_view path) const;
  // Decimal or, with 0x, hexadecimal; all of the file.
  std::optional<int64_t> ReadInt(std::string_view path) const;
  bool Exists(std::string_view path) const;
  // Names in a folder, sorted; numbers in them by value: mlx5_2 before mlx5_10.
  std::vector<std::string> List(std::string_view path) const;
  // The path with every link followed, again below the root. Empty: nothing there, or outside.
  std::string Resolve(std::string_view path) const;
  // The last part of where the link at `path` points to, be that there or not: the name of a
  // driver, a PCI address. Empty: no link.
  std::string LinkName(std::string_view path) const;
  // `path` as any program can open it.
  std::string Full(std::string_view path) const;

 private:
  void Note(std::string_view path) const;

  std::string root_;  // without a slash at its end; empty: /
  std::vector<std::string>* asked_;
};

// True where `a` comes before `b` with runs of digits compared as numbers.
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_SYSFS_H_
