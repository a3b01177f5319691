// What the two sides of a link say to each other on its control stream (kFrame). Little-endian;
// decoding never trusts a length.
//
//   accepting → connecting   Hello: so many domains there are
//   connecting → accepting   Offer: an endpoint for that rail is here, make its other end
//   accepting → connecting   Answer: here it is, or why not
//   both                     RailLost: my end of it is no more
//   connecting → accepting   Busy: writes and reads may be on their way, look for them
//   connecting → accepting   Count: so many immediates went over that rail
//   accepting → connecting   Count: so many have come out of it
//   connecting → accepting   Idle: nothing is on its way but what Count says
//   connecting → accepting   Told: an immediate, where the provider carries none; its bytes are
//   there connecting → accepting   Quiet: nothing of that transfer is on the way any more
//
// A rail's life is a number that rises with each of its Offers. What is said of an earlier life
// than the present one is of no interest any more.
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

namespace kvxfer::libfabric {

inline constexpr size_t kMaxText = 512;

struct Hello {
  uint8_t domains = 0;
};
struct Offer {
  uint8_t rail = 0;  // and which of the domains
  uint32_t life = 0;
  std::string address{};  // of the endpoint, at most kMaxText
};
struct Answer {
  uint8_t rail = 0;
  uint32_t life = 0;
  std::string error{};  // empty: what follows holds
  std::string address{};
  uint64_t sink = 0;  // where Domain::kNothing bytes may be written
  uint64_t sink_key = 0;
};
struct RailLost {
  uint8_t rail = 0;
  uint32_t life = 0;
  std::string why{};
};
struct Busy {};
struct Count {
  uint8_t rail = 0;
  uint32_t life = 0;
  uint32_t count = 0;  // of that life, from kFirstCount on; wraps
};
struct Idle {};
struct Told {
  uint8_t rail = 0;
  uint32_t life = 0;
  uint32_t immediate = 0;
};
struct Quiet {
  uint64_t transfer = 0;
};

// Near the end, so that every wrap is taken early and often.
inline constexpr uint32_t kFirstCount = UINT32_MAX - 1000;

using Frame = std::variant<Hello, Offer, Answer, RailLost, Busy, Count, Idle, Told, Quiet>;

std::string Encode(const Frame& frame);
absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes);

// What metadata says of an agent: where its control connections come in
// (src/transport/sockets/address.h), and its provider.
struct Whereabouts {
  std::string provider{};
  std::string_view control{};  // of what was decoded
};
std::string EncodeWhereabouts(const Whereabouts& at);
absl::StatusOr<Whereabouts> DecodeWhereabouts(std::string_view address);

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_FRAMES_H_
