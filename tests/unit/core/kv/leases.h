// Short names of what calls on leases answer, and of times.
#ifndef KVXFER_TESTS_UNIT_CORE_KV_LEASES_H_
#define KVXFER_TESTS_UNIT_CORE_KV_LEASES_H_

#include <chrono>

#include "absl/status/status.h"
#include "kvxfer/kv_cache.h"
#include "src/core/base/clock.h"

namespace kvxfer::testing {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr auto kUsed = absl::StatusCode::kAlreadyExists;
inline constexpr auto kEnded = absl::StatusCode::kFailedPrecondition;
inline constexpr auto kConsumed = KvLeaseEnd::kConsumed;
inline constexpr auto kReleased = KvLeaseEnd::kReleased;
inline constexpr auto kExpired = KvLeaseEnd::kExpired;

constexpr Time At(int second) { return Time{} + std::chrono::seconds(second); }

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_CORE_KV_LEASES_H_
