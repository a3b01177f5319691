// What the two sides of a link say to each other on its control stream (kFrame). Little-endian;
// decoding never trusts a length.
//
//   accepting → connecting   Hello: so many domains there are
//   connecting → accepting   Offer: an endpoint for that rail is here, make its other end
//   accepting → connecting   Answer: here it is, or why not
//   connecting → accepting   Busy: writes and reads may be on their way, look for them
//   connecting → accepting   Idle: none is
//   connecting → accepting   Quiet: nothing of that transfer is on the way any more
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
  uint8_t rail = 0;       // and which of the domains
  std::string address{};  // of the endpoint, at most kMaxText
};
struct Answer {
  uint8_t rail = 0;
  std::string error{};  // empty: what follows holds
  std::string address{};
  uint64_t sink = 0;  // where Domain::kNothing bytes may be written
  uint64_t sink_key = 0;
};
struct Busy {};
struct Idle {};
struct Quiet {
  uint64_t transfer = 0;
};

using Frame = std::variant<Hello, Offer, Answer, Busy, Idle, Quiet>;

std::vector<std::byte> Encode(const Frame& frame);
absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes);

// What metadata says of an agent: where its control connections come in (src/net/address.h), and
// its provider.
struct Told {
  std::string provider{};
  std::string_view control{};  // of what was decoded
};
std::string EncodeTold(const Told& told);
absl::StatusOr<Told> DecodeTold(std::string_view address);

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_FRAMES_H_
