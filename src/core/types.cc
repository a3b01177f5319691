#include "kvxfer/types.h"

#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace kvxfer {
namespace {

bool FillRandom(std::array<uint8_t, 16>& bytes) {
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    filled += static_cast<size_t>(got);
  }
  return true;
}

// For sandboxes that forbid getrandom: the kernel's random bytes for this process, told apart
// between forks and calls by pid, clocks and a counter. Unique, though not secret.
void FillUnique(std::array<uint8_t, 16>& bytes) {
  static std::atomic<uint64_t> counter{0};
  struct {
    std::array<uint8_t, 16> seed{};
    int64_t monotonic_ns = 0;
    int64_t realtime_ns = 0;
    int64_t pid = 0;
    uint64_t count = 0;
  } mix;
  if (const auto seed = getauxval(AT_RANDOM); seed != 0) {
    std::memcpy(mix.seed.data(), reinterpret_cast<const void*>(seed), mix.seed.size());
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  mix.monotonic_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  clock_gettime(CLOCK_REALTIME, &now);
  mix.realtime_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  mix.pid = getpid();
  mix.count = counter.fetch_add(1, std::memory_order_relaxed);
  const XXH128_hash_t hash = XXH3_128bits(&mix, sizeof(mix));
  std::memcpy(bytes.data(), &hash.low64, 8);
  std::memcpy(bytes.data() + 8, &hash.high64, 8);
}

}  // namespace

Incarnation Incarnation::Random() {
  Incarnation incarnation;
  // All zeros means "none", so it is never given out.
  while (incarnation.IsZero()) {
    if (!FillRandom(incarnation.bytes)) FillUnique(incarnation.bytes);
  }
  return incarnation;
}

std::string Incarnation::ToString() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace kvxfer
