#include "src/backends/verbs/blobs.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/codec.h"
#include "src/transport/hello.h"

namespace kvxfer::verbs {
namespace {

// Control addresses are text that never contains this character.
constexpr char kEndOfControl = '|';

}  // namespace

template <typename Io>
void Fields(Io& io, wire::Ref<Io, PortInfo> port) {
  io.Words("name", port.name, kMaxText);
  io.Words("fabric", port.fabric, kMaxText);
  io.Int("device", port.device);
  io.Int("link_layer", port.link_layer);
  io.Int("mtu", port.mtu);
  io.Check("mtu", MtuBytes(port.mtu) != 0, "unknown value");
  io.Int("lid", port.lid);
  io.Int("mbps", port.mbps);
  io.Bytes("gid", port.gid);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, QpAddress> address) {
  io.Int("number", address.number);
  io.Int("psn", address.psn);
  io.Int("reads", address.reads);
  Fields(io, address.port);
  io.Check("number", address.number < 1u << 24, "must have 24 bits");
  io.Check("psn", address.psn < 1u << 24, "must have 24 bits");
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Ports> frame) {
  io.ShortList("ports", frame.ports, kMaxPorts);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Offer> frame) {
  net::RailAndLife(io, frame);
  io.Int("port", frame.port);
  Fields(io, frame.from);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Answer> frame) {
  net::RailAndLife(io, frame);
  io.Words("error", frame.error, kMaxText);
  if (!frame.error.empty()) return;
  Fields(io, frame.at);
  io.Int("scratch", frame.scratch);
  io.Int("scratch_key", frame.scratch_key);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Probe> frame) {
  net::RailAndLife(io, frame);
  io.Int("nonce", frame.nonce);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Probed> frame) {
  net::RailAndLife(io, frame);
  io.Bool("found", frame.found);
}

template <typename Io>
void Fields(Io& io, wire::Ref<Io, ControlOffer> frame) {
  io.Int("port", frame.port);
  Fields(io, frame.from);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, ControlAnswer> frame) {
  Fields(io, frame.at);
}
template <typename Io>
void Fields(Io& /*io*/, wire::Ref<Io, ControlUp> /*frame*/) {}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, ControlLost> frame) {
  io.Words("why", frame.why, kMaxText);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, ControlPart> frame) {
  io.Int("number", frame.number);
  io.Bool("more", frame.more);
  io.Short("bytes", frame.bytes, kMaxPartBytes);
}

std::string Encode(const Blob& blob) { return wire::EncodeOneOf<0>(blob); }

absl::StatusOr<Blob> Decode(std::span<const std::byte> bytes) {
  return wire::DecodeOneOf<0, Blob>("verbs", bytes);
}

std::string EncodeMetadataAddress(const MetadataAddress& told) {
  return absl::StrCat(ToAbsl(told.control), std::string(1, kEndOfControl), Encode(told.ports));
}

absl::StatusOr<MetadataAddress> DecodeMetadataAddress(std::string_view address) {
  const size_t end = address.find(kEndOfControl);
  if (end == std::string_view::npos) return net::Damaged("address of a verbs peer");
  absl::StatusOr<Blob> blob = Decode(std::as_bytes(std::span(address.substr(end + 1))));
  if (!blob.ok()) return blob.status();
  auto* const ports = std::get_if<Ports>(&*blob);
  if (ports == nullptr) return net::Damaged("ports of a verbs peer");
  return MetadataAddress{.control = address.substr(0, end), .ports = std::move(*ports)};
}

}  // namespace kvxfer::verbs
