#include "src/transport/hello.h"

#include "absl/strings/str_cat.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::net {
namespace {

constexpr uint32_t kPreambleMagic = 0x5058564B;  // "KVXP"

}  // namespace

absl::Status Damaged(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("damaged stream: ", what));
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Preamble> preamble) {
  wire::Constant(io, "magic", kPreambleMagic, "not a kvxfer preamble");
  io.Int("version", preamble.version);
  // Nothing else is known of another version.
  if (preamble.version != kStreamVersion) return;
  wire::EnumField(io, "role", preamble.role, static_cast<uint8_t>(Role::kControl),
                  static_cast<uint8_t>(Role::kData));
  io.Int("rail", preamble.rail);
  io.Int("rails", preamble.rails);
  io.Check("rails",
           preamble.rails > 0 && preamble.rails <= kMaxRails && preamble.rail < preamble.rails,
           "must be 1 to 16, and more than the rail");
  // The listener answers a service that it does not have.
  uint8_t service = static_cast<uint8_t>(preamble.service);
  io.Int("service", service);
  io.Reserved(2);
  uint32_t life = preamble.role == Role::kData ? preamble.life : 0;
  io.Int("life", life);
  io.Id("target", preamble.target);
  io.Bytes("link", preamble.link);
  if constexpr (Io::kReads) {
    preamble.service = static_cast<Service>(service);
    preamble.life = life;
  }
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Welcome> welcome) {
  wire::Constant(io, "magic", kWelcomeMagic, "the answer is not from a kvxfer agent");
  io.Int("version", welcome.version);
  // A newer agent may have further reasons to refuse.
  uint8_t code = static_cast<uint8_t>(welcome.code);
  io.Int("code", code);
  if constexpr (Io::kReads) welcome.code = static_cast<WelcomeCode>(code);
  io.Reserved(1);
  io.Int("bytes", welcome.bytes);
  io.Bytes("link", welcome.link);
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, ControlHead> head) {
  io.Int("bytes", head.bytes);
  io.Check("bytes", head.bytes <= kMaxMessageBytes, "too many");
  wire::EnumField(io, "kind", head.kind, static_cast<uint8_t>(ControlKind::kMessage),
                  static_cast<uint8_t>(ControlKind::kFrame));
  wire::Zeros<3>(io);
}

void Encode(const Preamble& preamble, std::span<std::byte, kPreambleBytes> out) {
  std::ranges::fill(out, std::byte{0});
  wire::EncodeFixed(preamble, out.data());
}
void Encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out) {
  wire::EncodeFixed(welcome, out.data());
}
void Encode(const ControlHead& head, std::span<std::byte, kControlHeadBytes> out) {
  wire::EncodeFixed(head, out.data());
}

absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> in) {
  return wire::DecodeFixed<Preamble>("preamble", in.data());
}
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in) {
  return wire::DecodeFixed<Welcome>("welcome", in.data());
}
absl::StatusOr<ControlHead> DecodeControlHead(std::span<const std::byte, kControlHeadBytes> in) {
  return wire::DecodeFixed<ControlHead>("control", in.data());
}

}  // namespace kvxfer::net
