#include "src/backends/tcp/frames.h"

#include "src/core/protocol/codec.h"

namespace kvxfer::tcp {
namespace {

constexpr uint8_t kFrameMagic = 0x4B;
constexpr uint8_t kTrailerValid = 1;
constexpr uint8_t kTrailerImmediate = 2;
// kTrailerVoid is a bit of its own, so that a trailer is never all zero: filler is not a valid
// trailer.
constexpr uint8_t kTrailerVoid = 4;

}  // namespace

template <typename Io>
void Fields(Io& io, wire::Ref<Io, FrameHead> head) {
  wire::Constant(io, "magic", kFrameMagic, "not a data frame");
  wire::EnumField(io, "kind", head.kind, static_cast<uint8_t>(FrameKind::kWrite),
                  static_cast<uint8_t>(FrameKind::kFence));
  const bool has_runs = head.kind == FrameKind::kWrite || head.kind == FrameKind::kReadRequest;
  io.Int("runs", head.runs);
  io.Check("runs", head.runs <= (has_runs ? kMaxFrameRuns : 0), "too many");
  io.Int("bytes", head.bytes);
  io.Check("bytes", head.bytes <= (head.kind == FrameKind::kFence ? 0 : kMaxFrameBytes),
           "too many");
  io.Int("transfer", head.transfer);
  io.Int("number", head.number);
  wire::Constant(io, "reserved", uint64_t{0}, "must be 0");
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Trailer> trailer) {
  uint8_t flags = !trailer.valid          ? kTrailerVoid
                  : trailer.has_immediate ? kTrailerValid | kTrailerImmediate
                                          : kTrailerValid;
  io.Int("flags", flags);
  io.Check("flags",
           flags == kTrailerVoid || flags == kTrailerValid ||
               flags == (kTrailerValid | kTrailerImmediate),
           "unknown value");
  io.Reserved(3);
  const bool has_immediate = (flags & kTrailerImmediate) != 0;
  uint32_t immediate = has_immediate ? trailer.immediate : 0;
  io.BigEndian("immediate", immediate);
  if constexpr (Io::kReads) {
    trailer = {.valid = flags != kTrailerVoid,
               .has_immediate = has_immediate,
               .immediate = has_immediate ? immediate : 0};
  }
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, StreamLost> lost) {
  io.Int("rail", lost.rail);
  io.Reserved(3);
  io.Int("life", lost.life);
  io.RestOfWords("why", lost.why, kMaxLostText);
}

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out) {
  wire::EncodeFixed(head, out.data());
}
void Encode(const Trailer& trailer, std::span<std::byte, kTrailerBytes> out) {
  wire::EncodeFixed(trailer, out.data());
}
std::string Encode(const StreamLost& lost) { return wire::Encode(lost); }
void EncodeLife(uint32_t life, std::span<std::byte, kLifeBytes> out) {
  wire::StoreLittle(out.data(), life);
}

absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte, kFrameHeadBytes> in) {
  return wire::DecodeFixed<FrameHead>("data", in.data());
}
absl::StatusOr<Trailer> DecodeTrailer(std::span<const std::byte, kTrailerBytes> in) {
  return wire::DecodeFixed<Trailer>("data (trailer)", in.data());
}
absl::StatusOr<StreamLost> DecodeStreamLost(std::span<const std::byte> in) {
  return wire::Decode<StreamLost>("rail-lost", in);
}
uint32_t DecodeLife(std::span<const std::byte, kLifeBytes> in) {
  return wire::LoadLittle<uint32_t>(in.data());
}

}  // namespace kvxfer::tcp
