#include "src/backends/shm/regions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/core/base/strings.h"
#include "src/transport/host/shared_mapping.h"

namespace kvxfer::shm {

// Without F_SEAL_SHRINK the peer could truncate the file, and a store here would raise SIGBUS.
absl::Status CheckFile(int fd, uint64_t offset, uint64_t bytes) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError(
        "the shared descriptor is not a memfd with F_SEAL_SHRINK; seal it, or take the memory from "
        "HostBuffer");
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat of the shared descriptor");
  if (!Holds(0, static_cast<uint64_t>(info.st_size), offset, bytes)) {
    return absl::FailedPreconditionError(absl::StrCat("the shared descriptor has ", info.st_size,
                                                      " bytes, too few for ", bytes, " at offset ",
                                                      offset));
  }
  return absl::OkStatus();
}

absl::Status SharedFiles::Mappable(const MemorySpan& span) {
  return CheckFile(span.shared_fd, span.shared_offset, span.bytes);
}

absl::StatusOr<SharedFiles::Added> SharedFiles::Add(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(errno, "fstat of the shared descriptor");
  auto same = [&info](const std::unique_ptr<File>& file) {
    return file->inode == info.st_ino && file->device == info.st_dev;
  };
  const std::lock_guard lock(mu_);
  const auto known = std::find_if(files_.begin(), files_.end(), same);
  if (known != files_.end()) {
    ++(*known)->registrations;
    return Added{.id = (*known)->id};
  }
  auto file = std::make_unique<File>();
  // A copy of the descriptor, because the application may close its own.
  file->fd = UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!file->fd.valid()) return ErrnoStatus(errno, "keeping the shared descriptor");
  file->id = ++last_id_;
  file->device = info.st_dev;
  file->inode = info.st_ino;
  file->registrations = 1;
  new_.Add(files_.emplace_back(std::move(file)).get());
  return Added{.id = last_id_, .fresh = true};
}

bool SharedFiles::Remove(uint64_t id) {
  const std::lock_guard lock(mu_);
  const auto file = std::find_if(files_.begin(), files_.end(),
                                 [id](const std::unique_ptr<File>& f) { return f->id == id; });
  if (file == files_.end() || --(*file)->registrations > 0) return false;
  const bool sent = !new_.Remove(file->get());
  files_.erase(file);
  return sent;
}

std::vector<SharedFiles::File*> SharedFiles::TakeNew() {
  std::vector<File*> fresh = new_.Take();
  for (File* file : fresh) file->sent = true;
  return fresh;
}

std::vector<const SharedFiles::File*> SharedFiles::Sent() const {
  const std::lock_guard lock(mu_);
  std::vector<const File*> sent;
  for (const std::unique_ptr<File>& file : files_) {
    if (file->sent) sent.push_back(file.get());
  }
  return sent;
}

absl::StatusOr<std::unique_ptr<ShmRemoteKey>> ShmRemoteKey::Map(const Endpoint* endpoint,
                                                                const RemoteRegion& region,
                                                                int file, uint64_t offset) {
  // The peer's claim is not enough: what is mapped must exist and must not vanish.
  if (absl::Status good = CheckFile(file, offset, region.bytes); !good.ok()) return good;
  struct stat info {};
  if (fstat(file, &info) != 0) return ErrnoStatus(errno, "fstat of the peer's memfd");
  // Files with huge pages are mapped in units of their block size.
  uint64_t unit = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto block = static_cast<uint64_t>(info.st_blksize);
  if (block > unit && (block & (block - 1)) == 0) unit = block;
  const uint64_t begin = offset / unit * unit;
  const uint64_t bytes = (offset - begin + region.bytes + unit - 1) / unit * unit;
  const bool writable = Allows(region.access, Access::kRemoteWrite);
  void* data = MapShared(file, begin, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ);
  if (data == MAP_FAILED) {
    return ErrnoStatus(errno, absl::StrCat("mapping ", bytes, " bytes of the peer's region ",
                                           static_cast<uint32_t>(region.id)));
  }
  auto key = std::make_unique<ShmRemoteKey>(endpoint, region);
  key->mapping_ = std::make_shared<const Mapping>(data, bytes);
  // A forked child must not keep the peer's memory mapped.
  madvise(data, bytes, MADV_DONTFORK);
  key->base_ = key->mapping_->data() + (offset - begin);
  key->first_window_ = reinterpret_cast<uintptr_t>(data) >> kWindowShift;
  const uintptr_t last_window = (reinterpret_cast<uintptr_t>(data) + bytes - 1) >> kWindowShift;
  if (writable) key->warm_.resize((last_window - key->first_window_) / 64 + 1);
  return key;
}

}  // namespace kvxfer::shm
