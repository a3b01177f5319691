// The bytes of the tcp backend's streams; docs/wire-format-tcp.md has the tables. Little-endian,
// except immediates. Decoding never trusts a length.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_TCP_FRAMES_H_
#define KVXFER_BACKENDS_TCP_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer::tcp {

inline constexpr uint16_t kStreamVersion = 2;
inline constexpr uint32_t kMaxRails = 16;

// Bounds of one data frame, and of a message.
inline constexpr size_t kMaxFrameBytes = 1024 * 1024;
inline constexpr size_t kMaxFrameRuns = 1024;
inline constexpr size_t kMaxMessageBytes = 256 * 1024;

// Bounds of a write that travels on the control stream.
inline constexpr size_t kMaxInlineBytes = 16 * 1024;
inline constexpr size_t kMaxInlineRuns = 64;

// Random per link: whoever knows it may join a data stream to that link.
using LinkId = std::array<uint8_t, 16>;

enum class Role : uint8_t { kControl = 1, kData = 2 };

// The first bytes of every stream, from the side that connects.
struct Preamble {
  uint16_t version = kStreamVersion;
  Role role = Role::kControl;
  uint8_t rail = 0;    // of a data stream
  uint8_t rails = 0;   // of the link, 1 to kMaxRails
  Incarnation target;  // whom the connecting side means
  LinkId link{};       // zero on the control stream
};
inline constexpr size_t kPreambleBytes = 48;

enum class Verdict : uint8_t { kJoin = 1, kWrongIncarnation = 2, kWrongVersion = 3 };

// The accepting side's answer, on the control stream only.
struct Welcome {
  uint16_t version = kStreamVersion;
  Verdict verdict = Verdict::kJoin;
  LinkId link{};
};
inline constexpr size_t kWelcomeBytes = 32;

// After preamble and welcome the control stream carries these, in both directions.
enum class ControlKind : uint8_t {
  kMessage = 1,  // one Endpoint::Send
  kReady = 2,    // accepting side: every data stream has joined
  kClosing = 3,  // the sender closes; the payload says why
  kFrame = 4,    // connecting side: one whole data frame, a small write or a fence
};
struct ControlHead {
  uint32_t bytes = 0;
  ControlKind kind = ControlKind::kMessage;
};
inline constexpr size_t kControlHeadBytes = 8;

enum class FrameKind : uint8_t {
  kWrite = 1,         // head, runs, payload, trailer
  kReadRequest = 2,   // head, runs
  kReadResponse = 3,  // head, payload, trailer
  kFence = 4,         // head: nothing of `transfer` follows on this stream
};
struct FrameHead {
  FrameKind kind = FrameKind::kWrite;
  uint16_t runs = 0;
  uint32_t bytes = 0;  // of the payload (of a read request: asked for)
  uint64_t transfer = 0;
  uint64_t number = 0;  // of a read, counted by the side that asks; of an inline write, its rail
};
inline constexpr size_t kFrameHeadBytes = 32;

struct WireRun {
  uint64_t address = 0;  // at the accepting side
  uint32_t bytes = 0;
  uint32_t rkey = 0;
};
inline constexpr size_t kWireRunBytes = 16;

// A void frame counts for nothing: its sender gave up after it had begun.
struct Trailer {
  bool valid = false;
  bool has_immediate = false;
  uint32_t immediate = 0;
};
inline constexpr size_t kTrailerBytes = 8;

void Encode(const Preamble& preamble, std::span<std::byte, kPreambleBytes> out);
void Encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out);
void Encode(const ControlHead& head, std::span<std::byte, kControlHeadBytes> out);
void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out);
void Encode(const WireRun& run, std::span<std::byte, kWireRunBytes> out);
void Encode(const Trailer& trailer, std::span<std::byte, kTrailerBytes> out);

// A preamble of another version decodes (with that version), so that it can be answered.
absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> in);
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in);
absl::StatusOr<ControlHead> DecodeControlHead(std::span<const std::byte, kControlHeadBytes> in);
absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte, kFrameHeadBytes> in);
WireRun DecodeWireRun(std::span<const std::byte, kWireRunBytes> in);
absl::StatusOr<Trailer> DecodeTrailer(std::span<const std::byte, kTrailerBytes> in);

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_FRAMES_H_
