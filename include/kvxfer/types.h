// Small vocabulary types that every other header uses.
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
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvxfer {

// All durations of the interface; deadlines are kept on CLOCK_MONOTONIC.
using Duration = std::chrono::nanoseconds;

// Where the bytes of a region live.
enum class MemoryKind : uint8_t { kHost = 0, kCuda = 1 };

// A CUDA stream as the application holds it: a cudaStream_t or CUstream, as a number.
struct CudaStream {
  // 0 and 1: the legacy default stream; 2: the default stream of the calling thread.
  uint64_t handle = 0;
  // As the CUDA runtime counts. -1: that which the stream belongs to; of a default stream, that
  // which is current in the calling thread.
  int device = -1;
};

// What peers may do with a region (bit mask).
enum class Access : uint8_t { kNone = 0, kRemoteRead = 1, kRemoteWrite = 2, kReadWrite = 3 };

constexpr bool Allows(Access granted, Access wanted) {
  return (static_cast<uint8_t>(granted) & static_cast<uint8_t>(wanted)) ==
         static_cast<uint8_t>(wanted);
}

// 128 random bits that name one life of one agent. Everything a peer holds of an agent (metadata,
// keys, transfers, notifications) belongs to one incarnation and means nothing to the next.
struct Incarnation {
  std::array<uint8_t, 16> bytes{};

  static Incarnation Random();
  std::string ToString() const;
  bool IsZero() const { return *this == Incarnation{}; }
  auto operator<=>(const Incarnation&) const = default;
};

// Longest name of an agent, a backend or a host, a KV cache, a request or a lease, in bytes. Every
// name is UTF-8 without control characters, line separators and characters that change the
// direction of writing; InvalidArgument where one is not, whoever says it.
inline constexpr size_t kMaxNameBytes = 255;

// Names one registration of one agent; rises with every registration and is never used twice
// within an incarnation. Zero names none.
enum class RegionId : uint32_t { kNone = 0 };

}  // namespace kvxfer

#endif  // KVXFER_TYPES_H_
