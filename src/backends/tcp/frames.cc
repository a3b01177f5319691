#include "src/backends/tcp/frames.h"

#include <endian.h>

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace kvxfer::tcp {
namespace {

constexpr uint32_t kPreambleMagic = 0x5058564B;  // "KVXP"
constexpr uint32_t kWelcomeMagic = 0x4158564B;   // "KVXA"
constexpr uint8_t kFrameMagic = 0x4B;
constexpr uint8_t kTrailerValid = 1;
constexpr uint8_t kTrailerImmediate = 2;
constexpr uint8_t kTrailerVoid = 4;

void Put16(std::byte* at, uint16_t v) {
  v = htole16(v);
  std::memcpy(at, &v, sizeof(v));
}
void Put32(std::byte* at, uint32_t v) {
  v = htole32(v);
  std::memcpy(at, &v, sizeof(v));
}
void Put64(std::byte* at, uint64_t v) {
  v = htole64(v);
  std::memcpy(at, &v, sizeof(v));
}
uint16_t Get16(const std::byte* at) {
  uint16_t v;
  std::memcpy(&v, at, sizeof(v));
  return le16toh(v);
}
uint32_t Get32(const std::byte* at) {
  uint32_t v;
  std::memcpy(&v, at, sizeof(v));
  return le32toh(v);
}
uint64_t Get64(const std::byte* at) {
  uint64_t v;
  std::memcpy(&v, at, sizeof(v));
  return le64toh(v);
}
uint8_t Get8(const std::byte* at) { return std::to_integer<uint8_t>(*at); }

template <typename E>
std::byte Byte(E value) {
  return static_cast<std::byte>(value);
}

absl::Status Damaged(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("damaged stream: ", what));
}

}  // namespace

void Encode(const Preamble& preamble, std::span<std::byte, kPreambleBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  Put32(out.data(), kPreambleMagic);
  Put16(&out[4], preamble.version);
  out[6] = Byte(preamble.role);
  out[7] = Byte(preamble.rail);
  out[8] = Byte(preamble.rails);
  std::memcpy(&out[16], preamble.target.bytes.data(), preamble.target.bytes.size());
  std::memcpy(&out[32], preamble.link.data(), preamble.link.size());
}

absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> in) {
  if (Get32(in.data()) != kPreambleMagic) return Damaged("not a kvxfer preamble");
  Preamble out;
  out.version = Get16(&in[4]);
  if (out.version != kStreamVersion) return out;
  out.role = static_cast<Role>(Get8(&in[6]));
  out.rail = Get8(&in[7]);
  out.rails = Get8(&in[8]);
  if (out.role != Role::kControl && out.role != Role::kData) return Damaged("role");
  if (out.rails == 0 || out.rails > kMaxRails || out.rail >= out.rails) return Damaged("rails");
  std::memcpy(out.target.bytes.data(), &in[16], out.target.bytes.size());
  std::memcpy(out.link.data(), &in[32], out.link.size());
  return out;
}

void Encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  Put32(out.data(), kWelcomeMagic);
  Put16(&out[4], welcome.version);
  out[6] = Byte(welcome.verdict);
  std::memcpy(&out[16], welcome.link.data(), welcome.link.size());
}

absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in) {
  if (Get32(in.data()) != kWelcomeMagic) return Damaged("the answer is not from a kvxfer agent");
  Welcome out;
  out.version = Get16(&in[4]);
  out.verdict = static_cast<Verdict>(Get8(&in[6]));
  std::memcpy(out.link.data(), &in[16], out.link.size());
  return out;
}

void Encode(const ControlHead& head, std::span<std::byte, kControlHeadBytes> out) {
  Put32(out.data(), head.bytes);
  Put32(&out[4], static_cast<uint32_t>(head.kind));
}

absl::StatusOr<ControlHead> DecodeControlHead(std::span<const std::byte, kControlHeadBytes> in) {
  const uint32_t kind = Get32(&in[4]);
  if (kind < 1 || kind > 4) return Damaged("kind of a control frame");
  ControlHead out{.bytes = Get32(in.data()), .kind = static_cast<ControlKind>(kind)};
  if (out.bytes > kMaxMessageBytes) return Damaged("length of a control frame");
  return out;
}

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

void Encode(const WireRun& run, std::span<std::byte, kWireRunBytes> out) {
  Put64(out.data(), run.address);
  Put32(&out[8], run.bytes);
  Put32(&out[12], run.rkey);
}

WireRun DecodeWireRun(std::span<const std::byte, kWireRunBytes> in) {
  return {.address = Get64(in.data()), .bytes = Get32(&in[8]), .rkey = Get32(&in[12])};
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
