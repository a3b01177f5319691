// Encoding and decoding of control frames and of the address in the metadata.

#include "src/backends/libfabric/frames.h"

#include "src/core/protocol/codec.h"

namespace kvxfer::libfabric {
namespace {

constexpr uint8_t kFirst = 1;  // kind on the wire

}  // namespace

template <typename Io>
void Fields(Io& io, wire::Ref<Io, Hello> frame) {
  io.Int("domains", frame.domains);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Offer> frame) {
  net::RailAndLife(io, frame);
  io.Short("address", frame.address, kMaxText);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Answer> frame) {
  net::RailAndLife(io, frame);
  io.Words("error", frame.error, kMaxText);
  io.Short("address", frame.address, kMaxText);
  io.Int("sink", frame.sink);
  io.Int("sink_key", frame.sink_key);
}
template <typename Io>
void Fields(Io& /*io*/, wire::Ref<Io, Busy> /*frame*/) {}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Count> frame) {
  net::RailAndLife(io, frame);
  io.Int("count", frame.count);
}
template <typename Io>
void Fields(Io& /*io*/, wire::Ref<Io, Idle> /*frame*/) {}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Immediate> frame) {
  net::RailAndLife(io, frame);
  io.Int("immediate", frame.immediate);
}

std::string Encode(const Frame& frame) { return wire::EncodeOneOf<kFirst>(frame); }

absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes) {
  return wire::DecodeOneOf<kFirst, Frame>("libfabric", bytes);
}

std::string EncodeMetadataAddress(const MetadataAddress& at) {
  std::string out(1, static_cast<char>(at.provider.size()));
  out += at.provider;
  out += at.control;
  return out;
}

absl::StatusOr<MetadataAddress> DecodeMetadataAddress(std::string_view address) {
  const size_t bytes = address.empty() ? 0 : static_cast<uint8_t>(address[0]);
  if (bytes == 0 || address.size() < 1 + bytes) {
    return absl::InvalidArgumentError("libfabric: the peer's address is damaged");
  }
  return MetadataAddress{.provider = std::string(address.substr(1, bytes)),
                         .control = address.substr(1 + bytes)};
}

}  // namespace kvxfer::libfabric
