#include "src/transport/host/ring_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

}  // namespace

absl::StatusOr<OwnFd> MakeRingFile(size_t bytes) {
  OwnFd file =
      OwnFd::Open([] { return memfd_create("kvxfer-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING); });
  if (!file.valid()) return ErrnoStatus(errno, "memfd_create");
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoStatus(errno, "making a memfd of the right size");
  }
  return file;
}

absl::Status CheckRingFile(int file, size_t bytes) {
  const int seals = fcntl(file, F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError("they are in no memfd whose size is sealed");
  }
  struct stat info {};
  if (fstat(file, &info) != 0) return ErrnoStatus(errno, "fstat of the peer's rings");
  if (info.st_size != static_cast<off_t>(bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("their memfd has ", info.st_size, " bytes, not ", bytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<Mapping> MapRingFile(int file, size_t bytes) {
  // MAP_POPULATE: otherwise the first messages fault on each new page.
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "mapping rings");
  return Mapping(data, bytes);
}

bool RingsWithoutHarm(int bell) {
  const int flags = fcntl(bell, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) return false;
  std::array<char, 64> kind{};
  const std::string link = absl::StrCat("/proc/self/fd/", bell);
  return readlink(link.c_str(), kind.data(), kind.size() - 1) > 0 &&
         std::string_view(kind.data()) == "anon_inode:[eventfd]";
}

void RingBell(int bell) {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the bell has been rung often enough.
  [[maybe_unused]] const ssize_t n = write(bell, &one, sizeof(one));
}

}  // namespace kvxfer
