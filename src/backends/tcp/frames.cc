#include "src/backends/tcp/frames.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "src/core/base/text.h"
#include "src/transport/bytes.h"

namespace kvxfer::tcp {
namespace {

using net::Damaged;
using net::Get16;
using net::Get32;
using net::Get64;
using net::Get8;
using net::Put16;
using net::Put32;
using net::Put64;

constexpr uint8_t kFrameMagic = 0x4B;
constexpr uint8_t kTrailerValid = 1;
constexpr uint8_t kTrailerImmediate = 2;
// kTrailerVoid is a bit of its own, so that a trailer is never all zero: filler is not a valid
// trailer.
constexpr uint8_t kTrailerVoid = 4;
constexpr size_t kLostHeadBytes = 8;

template <typename E>
std::byte Byte(E value) {
  return static_cast<std::byte>(value);
}

}  // namespace

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out) {
  out[0] = std::byte{kFrameMagic};
  out[1] = Byte(head.kind);
  Put16(&out[2], head.runs);
  Put32(&out[4], head.bytes);
  Put64(&out[8], head.transfer);
  Put64(&out[16], head.number);
  Put64(&out[24], 0);
}

absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte, kFrameHeadBytes> in) {
  const uint8_t kind = Get8(&in[1]);
  if (Get8(in.data()) != kFrameMagic || Get64(&in[24]) != 0) return Damaged("head of a data frame");
  if (kind < 1 || kind > 4) return Damaged("kind of a data frame");
  FrameHead out{.kind = static_cast<FrameKind>(kind),
                .runs = Get16(&in[2]),
                .bytes = Get32(&in[4]),
                .transfer = Get64(&in[8]),
                .number = Get64(&in[16])};
  if (out.bytes > kMaxFrameBytes || out.runs > kMaxFrameRuns) return Damaged("size of a frame");
  const bool has_runs = out.kind == FrameKind::kWrite || out.kind == FrameKind::kReadRequest;
  if (!has_runs && out.runs != 0) return Damaged("runs in a frame that has none");
  if (out.kind == FrameKind::kFence && out.bytes != 0) return Damaged("payload in a fence");
  return out;
}

void Encode(const Trailer& trailer, std::span<std::byte, kTrailerBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  out[0] = std::byte{kTrailerVoid};
  if (!trailer.valid) return;
  out[0] = std::byte{kTrailerValid};
  if (!trailer.has_immediate) return;
  out[0] |= std::byte{kTrailerImmediate};
  const uint32_t big = htobe32(trailer.immediate);
  std::memcpy(&out[4], &big, sizeof(big));
}

std::string Encode(const RailLost& lost) {
  std::string out(kLostHeadBytes, '\0');
  const auto bytes = std::as_writable_bytes(std::span(out));
  bytes[0] = Byte(lost.rail);
  Put32(&bytes[4], lost.life);
  out.append(lost.why, 0, kMaxLostText);
  return out;
}

absl::StatusOr<RailLost> DecodeRailLost(std::span<const std::byte> in) {
  if (in.size() < kLostHeadBytes || in.size() > kLostHeadBytes + kMaxLostText) {
    return Damaged("word of a lost rail");
  }
  const std::span<const std::byte> why = in.subspan(kLostHeadBytes);
  return RailLost{
      .rail = Get8(in.data()),
      .life = Get32(&in[4]),
      .why = Printable({reinterpret_cast<const char*>(why.data()), why.size()}, kMaxLostText)};
}

void EncodeLife(uint32_t life, std::span<std::byte, kLifeBytes> out) { Put32(out.data(), life); }

uint32_t DecodeLife(std::span<const std::byte, kLifeBytes> in) { return Get32(in.data()); }

absl::StatusOr<Trailer> DecodeTrailer(std::span<const std::byte, kTrailerBytes> in) {
  uint32_t big;
  std::memcpy(&big, &in[4], sizeof(big));
  switch (Get8(in.data())) {
    case kTrailerVoid:
      return Trailer{};
    case kTrailerValid:
      return Trailer{.valid = true};
    case kTrailerValid | kTrailerImmediate:
      return Trailer{.valid = true, .has_immediate = true, .immediate = be32toh(big)};
    default:
      return Damaged("trailer of a data frame");
  }
}

}  // namespace kvxfer::tcp
