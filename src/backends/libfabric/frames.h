// What the two sides of an endpoint send each other on its control stream, as frames of the kind
// kFrame. Little-endian; decoding never trusts a length.
//
//   accepting → connecting   Hello: the number of domains here
//   connecting → accepting   Offer: an endpoint for that rail is open; open its other end
//   accepting → connecting   Answer: the other end's address, or why it cannot be opened
//   both                     RailLost: the sender has closed its end of the rail
//   connecting → accepting   Busy: writes and reads may be in flight; poll the completion queues
//   connecting → accepting   Count: so many immediates were sent over that rail
//   accepting → connecting   Count: so many immediates were received over it
//   connecting → accepting   Idle: nothing is in flight except the immediates that Count announced
//   connecting → accepting   Told: an immediate that the provider cannot carry (data is visible)
//   connecting → accepting   Quiet: nothing of that transfer is in flight any longer
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_LIBFABRIC_FRAMES_H_
#define KVXFER_BACKENDS_LIBFABRIC_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "src/transport/rail_frames.h"

namespace kvxfer::libfabric {

using net::kMaxText;
using net::Quiet;
using net::RailLost;

struct Hello {
  uint8_t domains = 0;
};
struct Offer {
  uint8_t rail = 0;  // the rail, and the number of the domain
  uint32_t life = 0;
  std::string address{};  // of the endpoint; at most kMaxText
};
struct Answer {
  uint8_t rail = 0;
  uint32_t life = 0;
  std::string error{};  // empty: the fields below are valid
  std::string address{};
  uint64_t sink = 0;  // where Domain::kNothing bytes may be written
  uint64_t sink_key = 0;
};
struct Busy {};
struct Count {
  uint8_t rail = 0;
  uint32_t life = 0;
  uint32_t count = 0;  // of that life, counted from kFirstCount; wraps
};
struct Idle {};
struct Immediate {
  uint8_t rail = 0;
  uint32_t life = 0;
  uint32_t immediate = 0;
};

// Near the end of the range, so that every rail wraps early and the wrap is exercised often.
inline constexpr uint32_t kFirstCount = UINT32_MAX - 1000;

using Frame = std::variant<Hello, Offer, Answer, RailLost, Busy, Count, Idle, Immediate, Quiet>;

std::string Encode(const Frame& frame);
absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes);

// What an agent's metadata says about this backend: where its control connections arrive
// (src/transport/sockets/address.h), and its provider.
struct MetadataAddress {
  std::string provider{};
  std::string_view control{};  // a view into the decoded text
};
std::string EncodeMetadataAddress(const MetadataAddress& at);
absl::StatusOr<MetadataAddress> DecodeMetadataAddress(std::string_view address);

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_FRAMES_H_
