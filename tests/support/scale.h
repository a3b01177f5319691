// How much and how long: counts shrink and time bounds stretch under sanitizers and in an emulated
// guest. Every random choice of a test comes from TestSeed(), which test runs print.
#ifndef KVXFER_TESTS_SUPPORT_SCALE_H_
#define KVXFER_TESTS_SUPPORT_SCALE_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <thread>

#include "kvxfer/types.h"
#include "src/core/base/clock.h"

// As macros for cases that cannot be under a sanitizer: those are left out, for a case that passes
// without looking says what is not so.
#if defined(__SANITIZE_ADDRESS__)
#define KVXFER_ADDRESS_SANITIZER 1
#else
#define KVXFER_ADDRESS_SANITIZER 0
#endif
#if defined(__SANITIZE_THREAD__)
#define KVXFER_THREAD_SANITIZER 1
#else
#define KVXFER_THREAD_SANITIZER 0
#endif
#define KVXFER_SANITIZED (KVXFER_ADDRESS_SANITIZER || KVXFER_THREAD_SANITIZER)

namespace kvxfer::testing {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

inline constexpr bool kAddressSanitizer = KVXFER_ADDRESS_SANITIZER;
inline constexpr bool kThreadSanitizer = KVXFER_THREAD_SANITIZER;
inline constexpr bool kSanitized = KVXFER_SANITIZED;
// KVXFER_TEST_GUEST is set: the processor is emulated (tests/support/rdma-vm).
inline const bool kEmulated = std::getenv("KVXFER_TEST_GUEST") != nullptr;
// KVXFER_TEST_QUICK is set: what a user wants to see, in minutes. Cases that differ only by the
// seed or the stand-in that they run over, and most repetitions, are left to `scripts/test --all`.
inline const bool kQuick = std::getenv("KVXFER_TEST_QUICK") != nullptr;
// KVXFER_TEST_DATA_THREADS: what agents over tcp have as `tcp.data_threads`; null: the default.
inline const char* const kDataThreads = std::getenv("KVXFER_TEST_DATA_THREADS");
inline const bool kSlow = kSanitized || kEmulated;

// An upper bound of time.
inline Duration Bound(Duration plain) { return plain * (kSlow ? 10 : 1); }
// A number of repetitions.
inline int Scaled(int plain) { return std::max(1, plain / (kSlow ? 10 : kQuick ? 4 : 1)); }

// KVXFER_TEST_SEED, or 1.
uint64_t TestSeed();

// Time enough for anything that is to happen at all; tests that pass do not wait for it.
inline const Duration kAmple = Bound(std::chrono::seconds(20));

// Between two looks at what another thread or process does. Not yield: a thread that yields again
// and again beside busy ones is passed over for seconds (Linux 6.18 takes the rest of its time
// slice from it each time), while one that has slept gets the processor.
inline void Pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

// Looks every 200 µs until `done` or `limit` has passed; the last answer.
template <typename Predicate>
bool Eventually(Duration limit, Predicate done) {
  const Time end = Now() + limit;
  while (!done()) {
    if (Now() > end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

inline double Milliseconds(Duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_SCALE_H_
