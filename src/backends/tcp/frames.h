// The data frames of the tcp backend. src/transport/hello.h defines how a stream begins, and
// docs/wire-format-tcp.md has the tables. Little-endian, except immediates. Decoding never trusts a
// length.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_TCP_FRAMES_H_
#define KVXFER_BACKENDS_TCP_FRAMES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/transport/hello.h"
#include "src/transport/regions.h"

namespace kvxfer::tcp {

using net::ControlHead;
using net::ControlKind;
using net::DecodeControlHead;
using net::DecodePreamble;
using net::DecodeWelcome;
using net::Encode;
using net::kControlHeadBytes;
using net::kMaxMessageBytes;
using net::kMaxRails;
using net::kPreambleBytes;
using net::kStreamVersion;
using net::kWelcomeBytes;
using net::LinkId;
using net::Preamble;
using net::Role;
using net::Welcome;
using net::WelcomeCode;

// This backend's number in preambles.
inline constexpr net::Service kService{0};

// Limits of one data frame.
inline constexpr size_t kMaxFrameBytes = 1024 * 1024;
inline constexpr size_t kMaxFrameRuns = 1024;

// Limits of a write that is sent on the control stream.
inline constexpr size_t kMaxInlineBytes = 16 * 1024;
inline constexpr size_t kMaxInlineRuns = 64;

enum class FrameKind : uint8_t {
  kWrite = 1,         // head, runs, payload, trailer
  kReadRequest = 2,   // head, runs
  kReadResponse = 3,  // head, payload, trailer
  kFence = 4,         // head: nothing of `transfer` follows on this stream
};
struct FrameHead {
  FrameKind kind = FrameKind::kWrite;
  uint16_t runs = 0;
  uint32_t bytes = 0;  // of the payload; of a read request: the bytes it asks for
  uint64_t transfer = 0;
  uint64_t number = 0;  // of a read: counted by the side that asks; of an inline write: its rail
};
inline constexpr size_t kFrameHeadBytes = 32;

// As many of these follow the head as it says.
using net::DecodeWireRun;
using net::kWireRunBytes;
using net::WireRun;

// A void frame has no effect: its sender gave up after the frame had begun.
struct Trailer {
  bool valid = false;
  bool has_immediate = false;
  uint32_t immediate = 0;
};
inline constexpr size_t kTrailerBytes = 8;

// Sent by the accepting side on the control stream: its end of `rail` is closed, in that life.
struct StreamLost {
  uint8_t rail = 0;
  uint32_t life = 0;
  std::string why{};  // text for people
};
inline constexpr size_t kMaxLostText = 512;

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out);
void Encode(const Trailer& trailer, std::span<std::byte, kTrailerBytes> out);
std::string Encode(const StreamLost& lost);

// Follows a fence on the control stream: for each rail, the last life that may have carried the
// transfer.
inline constexpr size_t kLifeBytes = 4;
void EncodeLife(uint32_t life, std::span<std::byte, kLifeBytes> out);
uint32_t DecodeLife(std::span<const std::byte, kLifeBytes> in);

absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte, kFrameHeadBytes> in);
absl::StatusOr<StreamLost> DecodeStreamLost(std::span<const std::byte> in);
absl::StatusOr<Trailer> DecodeTrailer(std::span<const std::byte, kTrailerBytes> in);

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_FRAMES_H_
