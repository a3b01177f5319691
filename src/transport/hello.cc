#include "src/transport/hello.h"

#include <algorithm>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/transport/bytes.h"

namespace kvxfer::net {
namespace {

constexpr uint32_t kPreambleMagic = 0x5058564B;  // "KVXP"

template <typename E>
std::byte Byte(E value) {
  return static_cast<std::byte>(value);
}

}  // namespace

absl::Status Damaged(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("damaged stream: ", what));
}

void Encode(const Preamble& preamble, std::span<std::byte, kPreambleBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  Put32(out.data(), kPreambleMagic);
  Put16(&out[4], preamble.version);
  out[6] = Byte(preamble.role);
  out[7] = Byte(preamble.rail);
  out[8] = Byte(preamble.rails);
  out[9] = Byte(preamble.service);
  if (preamble.role == Role::kData) Put32(&out[12], preamble.life);
  std::memcpy(&out[16], preamble.target.bytes.data(), preamble.target.bytes.size());
  std::memcpy(&out[32], preamble.link.data(), preamble.link.size());
}

absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> in) {
  if (Get32(in.data()) != kPreambleMagic) return Damaged("not a kvxfer preamble");
  Preamble out;
  out.version = Get16(&in[4]);
  // A preamble of another version may have another form, so only the version is decoded.
  if (out.version != kStreamVersion) return out;
  out.role = static_cast<Role>(Get8(&in[6]));
  out.rail = Get8(&in[7]);
  out.rails = Get8(&in[8]);
  out.service = static_cast<Service>(Get8(&in[9]));
  if (out.role != Role::kControl && out.role != Role::kData) return Damaged("role");
  if (out.rails == 0 || out.rails > kMaxRails || out.rail >= out.rails) return Damaged("rails");
  out.life = Get32(&in[12]);
  std::memcpy(out.target.bytes.data(), &in[16], out.target.bytes.size());
  std::memcpy(out.link.data(), &in[32], out.link.size());
  return out;
}

void Encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out) {
  std::fill(out.begin(), out.end(), std::byte{0});
  Put32(out.data(), kWelcomeMagic);
  Put16(&out[4], welcome.version);
  out[6] = Byte(welcome.verdict);
  Put64(&out[8], welcome.bytes);
  std::memcpy(&out[16], welcome.link.data(), welcome.link.size());
}

absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in) {
  if (Get32(in.data()) != kWelcomeMagic) return Damaged("the answer is not from a kvxfer agent");
  Welcome out;
  out.version = Get16(&in[4]);
  out.verdict = static_cast<Verdict>(Get8(&in[6]));
  out.bytes = Get64(&in[8]);
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
  // Checked before any memory is allocated for the payload.
  if (out.bytes > kMaxMessageBytes) return Damaged("length of a control frame");
  return out;
}

}  // namespace kvxfer::net
