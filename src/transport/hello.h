// How a stream to an agent begins, and what frames its control stream carries;
// docs/wire-format-tcp.md has the tables. Little-endian. Decoding never trusts a length.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_TRANSPORT_HELLO_H_
#define KVXFER_TRANSPORT_HELLO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer::net {

inline constexpr uint16_t kStreamVersion = 3;
inline constexpr uint32_t kMaxRails = 16;
inline constexpr size_t kMaxMessageBytes = 256 * 1024;

// Random per link: whoever knows it may join a data stream to that link.
using LinkId = std::array<uint8_t, 16>;

enum class Role : uint8_t { kControl = 1, kData = 2 };
// What is meant: a backend, by a number of its own (docs/wire-format-tcp.md lists them), for each
// has a listener of its own; or the agent's metadata, at the listener of a backend that serves
// them. That is answered by a welcome and the bytes, and the stream ends.
enum class Service : uint8_t { kMetadata = 3 };

// The first bytes of every stream, from the side that connects.
struct Preamble {
  uint16_t version = kStreamVersion;
  Role role = Role::kControl;
  uint8_t rail = 0;      // of a data stream
  uint8_t rails = 0;     // of the link, 1 to kMaxRails
  Incarnation target{};  // whom the connecting side means; zero: whoever is there (metadata)
  LinkId link{};         // zero on the control stream
  uint32_t life = 1;     // of a data stream: which attempt at this rail, counted from 1
  Service service{0};
};
inline constexpr size_t kPreambleBytes = 48;

enum class Verdict : uint8_t {
  kJoin = 1,  // of metadata: here it is
  kWrongIncarnation = 2,
  kWrongVersion = 3,
  // Of metadata only.
  kNotServed = 4,  // the agent does not hand it out
  kBusy = 5,       // too many are being told it now
  kClosing = 6,    // the agent is
};

// The accepting side's answer: on the control stream, on a data stream that it has taken, and to
// who asks for metadata.
struct Welcome {
  uint16_t version = kStreamVersion;
  Verdict verdict = Verdict::kJoin;
  LinkId link{};
  uint64_t bytes = 0;  // of metadata, which follow
};
inline constexpr size_t kWelcomeBytes = 32;
inline constexpr uint32_t kWelcomeMagic = 0x4158564B;  // "KVXA", its first bytes

// After preamble and welcome the control stream carries these, in both directions.
enum class ControlKind : uint8_t {
  kMessage = 1,  // one Endpoint::Send
  kReady = 2,    // accepting side: the link is whole
  kClosing = 3,  // the sender closes; the payload says why
  kFrame = 4,    // what the two backends say to each other
};
struct ControlHead {
  uint32_t bytes = 0;
  ControlKind kind = ControlKind::kMessage;
};
inline constexpr size_t kControlHeadBytes = 8;

void Encode(const Preamble& preamble, std::span<std::byte, kPreambleBytes> out);
void Encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out);
void Encode(const ControlHead& head, std::span<std::byte, kControlHeadBytes> out);

// A preamble of another version decodes (with that version), so that it can be answered.
absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> in);
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in);
absl::StatusOr<ControlHead> DecodeControlHead(std::span<const std::byte, kControlHeadBytes> in);

// What decoders answer to bytes that make no sense.
absl::Status Damaged(const char* what);

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_HELLO_H_
