// Small types that all other headers use.
//
// Thread-safety: plain values; safe to copy between threads.
//
// Example:
//   kvxfer::Incarnation a = kvxfer::Incarnation::Random();
//   std::string text = a.ToString();   // 32 hex digits

#ifndef KVXFER_TYPES_H_
#define KVXFER_TYPES_H_

#include <array>
#include <chrono>
#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace kvxfer {

// The unit of all durations in the interface. Deadlines use CLOCK_MONOTONIC.
using Duration = std::chrono::nanoseconds;

// The status code of a call whose own time-out passed: Transfer::Wait and WaitQuiet, and the calls
// of Agent that wait (WaitNotification, WaitLayers, DeregisterMemory, Drain). What the call waited
// for goes on, and the call may be repeated. Nothing else has this code. A transfer that missed its
// deadline ends with DeadlineExceeded.
inline constexpr absl::StatusCode kTimedOut = absl::StatusCode::kOutOfRange;
inline bool IsTimedOut(const absl::Status& status) { return status.code() == kTimedOut; }

// Where the bytes of a region live.
enum class MemoryKind : uint8_t { kHost = 0, kCuda = 1 };

// A CUDA stream of the application: a cudaStream_t or CUstream, as a number.
struct CudaStream {
  // 0 or 1: the legacy default stream; 2: the calling thread's default stream.
  uint64_t handle = 0;
  // The CUDA runtime's device number. -1: the stream's own device; for a default stream, the device
  // that is current in the calling thread.
  int device = -1;
};

// What peers may do with a region (bit mask).
enum class Access : uint8_t { kNone = 0, kRemoteRead = 1, kRemoteWrite = 2, kReadWrite = 3 };

constexpr bool Allows(Access granted, Access wanted) {
  return (static_cast<uint8_t>(granted) & static_cast<uint8_t>(wanted)) ==
         static_cast<uint8_t>(wanted);
}

// 128 bits that identify one run of one agent: the hash of a public key that the agent makes at its
// start, and proves on every connection. Everything that a peer knows about an agent
// (metadata, rkeys, transfers, notifications) belongs to one incarnation and is invalid for the
// next.
struct Incarnation {
  std::array<uint8_t, 16> bytes{};

  static Incarnation Random();
  std::string ToString() const;
  bool IsZero() const { return *this == Incarnation{}; }
  auto operator<=>(const Incarnation&) const = default;
};

// The maximum length, in bytes, of the name of an agent, backend, host, KV cache, request or lease.
// Names are UTF-8 without control characters, line separators, or characters that change the
// writing direction; another name is refused with InvalidArgument, whether local or from a peer.
inline constexpr size_t kMaxNameBytes = 255;

// The name of a KV cache, of a request or of a lease: one type for each, so that none is given
// where another is meant. Text becomes a name only where it is said: CacheName("kv").
template <typename Of>
struct KvName {
  std::string text{};

  KvName() = default;
  template <std::convertible_to<std::string_view> Text>
  // The concept keeps copies and moves of a KvName out; clang-tidy 14 does not see it.
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload)
  explicit KvName(Text&& name) : text(std::forward<Text>(name)) {}
  bool empty() const { return text.empty(); }
  auto operator<=>(const KvName&) const = default;
};
using CacheName = KvName<struct OfCache>;
using RequestName = KvName<struct OfRequest>;
using LeaseName = KvName<struct OfLease>;

// Names what a call of Agent::Quiesce left open.
enum class QuiesceToken : uint64_t { kNone = 0 };

// Identifies one registration of one agent. Ids increase and are never reused within an
// incarnation.
enum class RegionId : uint32_t { kNone = 0 };

}  // namespace kvxfer

#endif  // KVXFER_TYPES_H_
