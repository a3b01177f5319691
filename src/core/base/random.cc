#include "src/core/base/random.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "src/core/base/own_fd.h"

namespace kvxfer {
namespace {

bool FillFromKernel(std::span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return true;
}

int64_t Nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// 128 bits that differ between processes, forks and calls: a hash of the random bytes that the
// kernel gives each process (AT_RANDOM), the pid, two clocks and a counter. Unique, but not secret:
// AT_RANDOM is inherited across fork and readable in /proc.
XXH128_hash_t Unique() {
  static std::atomic<uint64_t> counter{0};
  struct {
    std::array<uint8_t, 16> seed{};
    int64_t monotonic_ns = Nanoseconds(CLOCK_MONOTONIC);
    int64_t realtime_ns = Nanoseconds(CLOCK_REALTIME);
    int64_t pid = getpid();
    uint64_t count = counter.fetch_add(1, std::memory_order_relaxed);
  } mix;
  if (const auto seed = getauxval(AT_RANDOM); seed != 0) {
    std::memcpy(mix.seed.data(), reinterpret_cast<const void*>(seed), mix.seed.size());
  }
  return XXH3_128bits(&mix, sizeof(mix));
}

template <typename Word>
Word RandomNonZero() {
  Word word = 0;
  while (word == 0) {
    std::array<uint8_t, sizeof(Word)> bytes;
    FillRandom(bytes);
    std::memcpy(&word, bytes.data(), sizeof(word));
  }
  return word;
}

}  // namespace

void FillRandom(std::span<uint8_t> bytes) {
  if (FillFromKernel(bytes)) return;
  // getrandom is forbidden here (a sandbox).
  while (!bytes.empty()) {
    const XXH128_hash_t hash = Unique();
    const size_t some = std::min(bytes.size(), sizeof(hash));
    std::memcpy(bytes.data(), &hash, some);
    bytes = bytes.subspan(some);
  }
}

bool FillSecret(std::span<uint8_t> bytes) {
  if (FillFromKernel(bytes)) return true;
  const OwnFd fd = OwnFd::Open([] { return ::open("/dev/urandom", O_RDONLY | O_CLOEXEC); });
  while (fd.valid() && !bytes.empty()) {
    const ssize_t got = ::read(fd.get(), bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return fd.valid();
}

uint32_t RandomNonZero32() { return RandomNonZero<uint32_t>(); }
uint64_t RandomNonZero64() { return RandomNonZero<uint64_t>(); }

}  // namespace kvxfer
