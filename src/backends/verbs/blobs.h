// What the two sides of an endpoint send each other on its control stream (kFrame). Little-endian;
// decoding never trusts a length.
//
//   accepting → connecting   Ports: what may be connected to; sent again when a port has changed
//   connecting → accepting   Offer: a queue pair is ready on this side; make its other end
//   accepting → connecting   Answer: the other end is ready, or why not
//   connecting → accepting   Probe: a write of these eight bytes was acknowledged; are they there?
//   accepting → connecting   Probed: they are, or are not
//   both                     RailLost: my end of that rail is in error or destroyed
//   connecting → accepting   Quiet: nothing of that transfer is in flight any longer
//   connecting → accepting   ControlOffer: this side of a control pair is ready; make the other one
//   accepting → connecting   ControlAnswer: it is ready
//   both                     ControlUp: my messages after this frame go over the control pair
//   both                     ControlLost: there is none, or no more; messages come by this stream
//   both                     ControlPart: part of a message that the control pair did not deliver
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_VERBS_BLOBS_H_
#define KVXFER_BACKENDS_VERBS_BLOBS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "src/backends/verbs/message_parts.h"
#include "src/backends/verbs/port.h"
#include "src/transport/rail_frames.h"

namespace kvxfer::verbs {

inline constexpr size_t kMaxPorts = 64;
using net::kMaxText;
using net::Quiet;
using net::RailLost;

// One end of a queue pair.
struct QpAddress {
  uint32_t number = 0;  // 24 bits
  uint32_t psn = 0;     // of the first packet that it sends, 24 bits
  uint8_t reads = 1;    // how many reads it serves at once
  PortInfo port{};
};

struct Ports {
  std::vector<PortInfo> ports{};
};
struct Offer {
  uint8_t rail = 0;
  uint32_t life = 0;  // rises with every queue pair of the rail
  uint8_t port = 0;   // index into Ports
  QpAddress from{};
};
struct Answer {
  uint8_t rail = 0;
  uint32_t life = 0;
  std::string error{};  // empty: `at` and the following fields are valid
  QpAddress at{};
  uint64_t scratch = 0;  // where the probe is written: one slot of Scratch
  uint32_t scratch_key = 0;
};
struct Probe {
  uint8_t rail = 0;
  uint32_t life = 0;
  uint64_t nonce = 0;
};
struct Probed {
  uint8_t rail = 0;
  uint32_t life = 0;
  bool found = false;
};

struct ControlOffer {
  uint8_t port = 0;  // index into Ports
  QpAddress from{};
};
struct ControlAnswer {
  QpAddress at{};
};
struct ControlUp {};
struct ControlLost {
  std::string why{};
};
struct ControlPart {
  uint32_t number = 0;  // as PartHead::number
  bool more = false;
  std::string bytes{};
};

using Blob = std::variant<Ports, Offer, Answer, Probe, Probed, RailLost, Quiet, ControlOffer,
                          ControlAnswer, ControlUp, ControlLost, ControlPart>;

// Texts are cut to kMaxText.
std::string Encode(const Blob& blob);
absl::StatusOr<Blob> Decode(std::span<const std::byte> bytes);

// What metadata contains about an agent: the address of its control connections
// (src/transport/sockets/address.h), and its ports. So an agent that has no port in common with it
// knows that without asking.
struct MetadataAddress {
  std::string_view control{};  // points into the decoded text
  Ports ports{};
};
std::string EncodeMetadataAddress(const MetadataAddress& told);
absl::StatusOr<MetadataAddress> DecodeMetadataAddress(std::string_view address);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_BLOBS_H_
