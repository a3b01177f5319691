#include "src/cli/topo/sysfs_tree.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>

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

namespace fs = std::filesystem;

class Copier {
 public:
  Copier(const Sysfs& from, const std::string& to) : from_(from), to_(to) {}

  absl::Status Copy(const std::string& path) {
    at_ = "/";
    rest_.clear();
    links_ = 0;
    Prepend(path);
    while (!rest_.empty()) {
      const std::string part = rest_.front();
      rest_.pop_front();
      if (absl::Status s = Enter(part); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  // As many as the kernel follows.
  static constexpr int kMaxLinks = 40;

  void Prepend(const fs::path& path) {
    std::vector<std::string> parts;
    for (const fs::path& part : path.relative_path()) {
      if (!part.empty() && part != ".") parts.push_back(part.string());
    }
    rest_.insert(rest_.begin(), parts.begin(), parts.end());
  }

  absl::Status Enter(const std::string& part) {
    if (part == "..") {
      at_ = at_.parent_path();
      return absl::OkStatus();
    }
    const fs::path next = at_ / part;
    std::error_code error;
    const fs::file_status status = fs::symlink_status(from_.Full(next.string()), error);
    if (fs::is_symlink(status)) return Follow(next);
    if (fs::is_directory(status) || (!fs::exists(status) && !rest_.empty())) {
      at_ = next;
      return MakeFolder(next);
    }
    rest_.clear();
    if (!fs::exists(status)) return absl::OkStatus();
    // An unreadable file is left out, so that it is unreadable in the copy too.
    if (!fs::is_regular_file(status)) return WriteFile(next, "");
    const std::optional<std::string> text = from_.Read(next.string());
    return text ? WriteFile(next, *text + "\n") : absl::OkStatus();
  }

  absl::Status Follow(const fs::path& link) {
    std::error_code error;
    const fs::path target = fs::read_symlink(from_.Full(link.string()), error);
    const std::string copy = to_ + link.string();
    if (!error && !fs::is_symlink(fs::symlink_status(copy)))
      fs::create_symlink(target, copy, error);
    if (error) return CannotWrite(copy, error);
    // The target of an absolute link is outside the copy; a reader of the copy finds it missing.
    if (target.is_absolute() || ++links_ > kMaxLinks) {
      rest_.clear();
    } else {
      Prepend(target);
    }
    return absl::OkStatus();
  }

  absl::Status MakeFolder(const fs::path& path) {
    std::error_code error;
    fs::create_directories(to_ + path.string(), error);
    return error ? CannotWrite(to_ + path.string(), error) : absl::OkStatus();
  }

  absl::Status WriteFile(const fs::path& path, const std::string& text) {
    std::ofstream file(to_ + path.string(), std::ios::binary);
    file << text;
    if (file.flush()) return absl::OkStatus();
    return CannotWrite(to_ + path.string(), {errno, std::generic_category()});
  }

  const Sysfs& from_;
  const std::string& to_;
  fs::path at_;                   // current folder below either root, without links
  std::deque<std::string> rest_;  // of the path
  int links_ = 0;
};

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

absl::Status CopySysfs(const Sysfs& from, const std::vector<std::string>& paths,
                       const std::string& to) {
  std::error_code error;
  fs::create_directories(to, error);
  if (error) return CannotWrite(to, error);
  if (!fs::is_empty(to, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(to, " is not empty: name a folder that does not exist yet"));
  }
  Copier copier(from, to);
  for (const std::string& path : paths) {
    if (absl::Status s = copier.Copy(path); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
