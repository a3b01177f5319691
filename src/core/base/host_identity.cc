#include "src/core/base/host_identity.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "kvxfer/types.h"
#include "src/core/base/text.h"

namespace kvxfer {
namespace {

// Returns the first 4 KiB of `path`, which holds every /proc file that is read here; empty on
// error.
std::string ReadSmallFile(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  std::array<char, 4096> buffer;
  size_t used = 0;
  while (used < buffer.size()) {
    const ssize_t got = read(fd, buffer.data() + used, buffer.size() - used);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    used += static_cast<size_t>(got);
  }
  close(fd);
  return std::string(buffer.data(), used);
}

struct ProcessStat {
  char state = 0;
  uint64_t threads = 0;
  uint64_t start_time = 0;
};

std::optional<uint64_t> ParseNumber(const std::string& text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Parses /proc/<pid>/stat, "pid (name) state ..." (proc(5)). The name may contain spaces and
// brackets, so the fields are counted from the last ')': state is field 3, num_threads 20,
// starttime 22.
std::optional<ProcessStat> ReadStat(const std::string& path) {
  const std::string text = ReadSmallFile(path);
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  std::vector<std::string> fields;
  for (std::string field; fields.size() < 20 && rest >> field;) fields.push_back(field);
  if (fields.size() < 20 || fields[0].size() != 1) return std::nullopt;
  const std::optional<uint64_t> threads = ParseNumber(fields[17]);
  const std::optional<uint64_t> start_time = ParseNumber(fields[19]);
  if (!threads.has_value() || !start_time.has_value()) return std::nullopt;
  return ProcessStat{.state = fields[0][0], .threads = *threads, .start_time = *start_time};
}

uint64_t InodeOf(const char* path) {
  struct stat info {};
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

// The kernel shifts the start times in /proc by the boot clock offset of the reader's time
// namespace. Readers in different time namespaces therefore see different start times of one
// process.
bool BootClockShifted() {
  std::istringstream offsets(ReadSmallFile("/proc/self/timens_offsets"));
  std::string clock;
  int64_t seconds = 0;
  int64_t nanoseconds = 0;
  while (offsets >> clock >> seconds >> nanoseconds) {
    if (clock == "boottime" && (seconds != 0 || nanoseconds != 0)) return true;
  }
  return false;
}

// Whether /proc belongs to the pid namespace of this process. A container may have mounted the
// /proc of another namespace, where the same pid names another process.
bool ProcShowsOurPids() {
  std::array<char, 32> buffer;
  const ssize_t got = readlink("/proc/self", buffer.data(), buffer.size());
  return got > 0 &&
         std::string(buffer.data(), static_cast<size_t>(got)) == std::to_string(getpid());
}

}  // namespace

HostIdentity ReadHostIdentity() {
  HostIdentity identity;
  std::array<char, 256> hostname{};
  if (gethostname(hostname.data(), hostname.size() - 1) == 0) {
    // gethostname may return any bytes. Peers refuse metadata whose host name is not printable.
    identity.hostname = Printable(hostname.data(), kMaxNameBytes / 2);
  }
  identity.boot_id = ReadSmallFile("/proc/sys/kernel/random/boot_id");
  while (!identity.boot_id.empty() && identity.boot_id.back() == '\n') identity.boot_id.pop_back();
  identity.net_namespace = InodeOf("/proc/self/ns/net");
  identity.pid_namespace = InodeOf("/proc/self/ns/pid");
  identity.uid = geteuid();
  identity.pid = static_cast<uint32_t>(getpid());
  const std::optional<ProcessStat> stat = ReadStat("/proc/self/stat");
  if (stat.has_value() && !BootClockShifted()) identity.start_time = stat->start_time;
  return identity;
}

bool ProcessGone(const HostIdentity& them, const HostIdentity& us) {
  if (them.boot_id.empty() || them.boot_id != us.boot_id) return false;
  if (them.pid_namespace == 0 || them.pid_namespace != us.pid_namespace) return false;
  if (them.pid == 0 || them.pid > static_cast<uint32_t>(std::numeric_limits<pid_t>::max())) {
    return false;
  }
  // kill() answers for the kernel. A missing /proc entry proves nothing, for hidepid hides entries.
  if (kill(static_cast<pid_t>(them.pid), 0) != 0 && errno == ESRCH) return true;
  if (!ProcShowsOurPids()) return false;
  const std::optional<ProcessStat> stat = ReadStat("/proc/" + std::to_string(them.pid) + "/stat");
  if (!stat.has_value()) return false;
  // The pid exists. If the process started at another time, the pid was reused after `them` had
  // ended.
  const bool comparable = them.start_time != 0 && us.start_time != 0;
  if (comparable && stat->start_time != them.start_time) return true;
  // A process whose main thread has ended shows as a zombie while its other threads still run. Only
  // a zombie with one thread has ended as a whole.
  const bool ended = stat->state == 'Z' || stat->state == 'X' || stat->state == 'x';
  return ended && stat->threads <= 1;
}

}  // namespace kvxfer
