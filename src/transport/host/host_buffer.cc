#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "kvxfer/memory.h"
#include "src/core/base/strings.h"
#include "src/transport/host/shared_mapping.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace kvxfer {
namespace {

constexpr size_t kPopulateStep = 64 * 1024 * 1024;  // a signal undoes or repeats at most this much

absl::Status Exhausted(size_t bytes, std::string_view why) {
  return absl::ResourceExhaustedError(
      absl::StrCat("HostBuffer of ", bytes, " bytes: ", ToAbsl(why)));
}

std::string ReadText(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::string text(4096, '\0');
  const ssize_t got = read(fd, text.data(), text.size());
  close(fd);
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

std::optional<uint64_t> NumberAfter(const std::string& text, std::string_view label) {
  size_t at = text.find(label);
  if (at == std::string::npos) return std::nullopt;
  at = text.find_first_not_of(' ', at + label.size());
  if (at == std::string::npos) return std::nullopt;
  uint64_t number = 0;
  if (std::from_chars(text.data() + at, text.data() + text.size(), number).ec != std::errc()) {
    return std::nullopt;
  }
  return number;
}

// Using more pages than exist does not fail: the kernel kills a process. So everything that can be
// known in advance is checked here.
absl::Status CheckSpace(size_t bytes, bool reserved) {
  // Beyond this limit ftruncate would raise SIGXFSZ.
  rlimit file_size{};
  if (getrlimit(RLIMIT_FSIZE, &file_size) == 0 && bytes > file_size.rlim_cur) {
    return Exhausted(bytes, absl::StrCat("RLIMIT_FSIZE is ", file_size.rlim_cur));
  }
  if (reserved) return absl::OkStatus();  // mmap reports a lack of reserved pages
  if (const auto kib = NumberAfter(ReadText("/proc/meminfo"), "MemAvailable:");
      kib.has_value() && bytes / 1024 > *kib) {
    return Exhausted(bytes, absl::StrCat("only ", *kib, " KiB of memory are available"));
  }
  if (const auto most = NumberAfter(ReadText("/sys/fs/cgroup/memory.max"), "");
      most.has_value() && bytes > *most) {
    return Exhausted(bytes, absl::StrCat("the control group may use ", *most, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> PageBytes(int fd, bool reserved) {
  if (!reserved) return static_cast<size_t>(sysconf(_SC_PAGESIZE));
  struct stat info {};
  if (fstat(fd, &info) != 0)
    return absl::ResourceExhaustedError(ErrnoText("HostBuffer: fstat", errno));
  return static_cast<size_t>(info.st_blksize);
}

// Allocates all pages of the file now, so that a lack of memory is an error here and not a SIGBUS
// on a later access. Returns 0 or an errno.
int Populate(int fd, std::byte* data, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const size_t step = std::min(kPopulateStep, bytes - at);
    int error = madvise(data + at, step, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    if (error == EINVAL || error == ENOSYS) {  // before Linux 5.14
      error = fallocate(fd, 0, static_cast<off_t>(at), static_cast<off_t>(step)) == 0 ? 0 : errno;
    }
    if (error == EINTR || error == EAGAIN) continue;
    if (error != 0) return error;
    at += step;
  }
  return 0;
}

}  // namespace

absl::StatusOr<HostBuffer> HostBuffer::Allocate(size_t bytes, HostPages pages) {
  if (bytes == 0) return absl::InvalidArgumentError("HostBuffer of 0 bytes: nothing to allocate");
  const bool reserved = pages == HostPages::kReserved;
  HostBuffer buffer;  // its destructor releases everything on each return
  buffer.fd_ =
      memfd_create("kvxfer", MFD_CLOEXEC | MFD_ALLOW_SEALING | (reserved ? MFD_HUGETLB : 0u));
  if (buffer.fd_ < 0) return Exhausted(bytes, ErrnoText("memfd_create", errno));
  const absl::StatusOr<size_t> page = PageBytes(buffer.fd_, reserved);
  if (!page.ok()) return page.status();
  if (bytes > static_cast<size_t>(std::numeric_limits<off_t>::max()) - *page) {
    return Exhausted(bytes, "larger than any file");
  }
  const size_t whole = (bytes + *page - 1) / *page * *page;
  if (absl::Status space = CheckSpace(whole, reserved); !space.ok()) return space;

  if (ftruncate(buffer.fd_, static_cast<off_t>(whole)) != 0) {
    return Exhausted(bytes, ErrnoText("ftruncate", errno));
  }
  void* data = MapShared(buffer.fd_, 0, whole, PROT_READ | PROT_WRITE);
  if (data == MAP_FAILED && reserved) {
    return Exhausted(bytes, absl::StrCat(ToAbsl(ErrnoText("mmap", errno)), "; vm.nr_hugepages must",
                                         " reserve ", whole / *page, " free huge pages for it"));
  }
  if (data == MAP_FAILED) return Exhausted(bytes, ErrnoText("mmap", errno));
  buffer.data_ = static_cast<std::byte*>(data);
  buffer.bytes_ = bytes;
  buffer.mapped_bytes_ = whole;
  // Before Populate, which would fill the file with small pages.
  if (pages == HostPages::kHuge) GatherHugePages(buffer.data_, whole);
  if (const int error = Populate(buffer.fd_, buffer.data_, whole); error != 0) {
    return Exhausted(bytes, ErrnoText("reserving its pages", error));
  }
  // Sealed: a peer that maps the file can rely on its size, so nobody can make it raise SIGBUS.
  if (fcntl(buffer.fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return Exhausted(bytes, ErrnoText("sealing its memfd", errno));
  }
  return buffer;
}

HostBuffer::HostBuffer(HostBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      fd_(std::exchange(other.fd_, -1)) {}

HostBuffer& HostBuffer::operator=(HostBuffer&& other) noexcept {
  const HostBuffer old(std::move(*this));
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) munmap(data_, mapped_bytes_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace kvxfer
