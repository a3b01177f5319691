// How a stream to an agent begins, and the frames of its control stream. docs/wire-format-tcp.md
// has the tables. Integers are little-endian. Decoding trusts no length.
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

// Random per link. A data stream that knows the id may join the link, so it must stay secret.
using LinkId = std::array<uint8_t, 16>;

enum class Role : uint8_t { kControl = 1, kData = 2 };
// The service that is asked for: a backend, by a number of its own (docs/wire-format-tcp.md lists
// them), because each backend has its own listener; or the agent's metadata, at the listener of a
// backend that serves metadata. A request for metadata is answered with a welcome and the bytes;
// then the stream ends.
enum class Service : uint8_t { kMetadata = 3 };

// The first bytes of every stream, sent by the connecting side.
struct Preamble {
  uint16_t version = kStreamVersion;
  Role role = Role::kControl;
  uint8_t rail = 0;      // data stream only
  uint8_t rails = 0;     // of the link, 1 to kMaxRails
  Incarnation target{};  // the expected incarnation; zero: any (metadata)
  LinkId link{};         // zero on the control stream
  uint32_t life = 1;     // data stream only: number of the attempt at this rail, from 1
  Service service{0};
};
inline constexpr size_t kPreambleBytes = 48;

enum class WelcomeCode : uint8_t {
  kJoin = 1,  // metadata: the bytes follow
  kWrongIncarnation = 2,
  kWrongVersion = 3,
  // For metadata only.
  kNotServed = 4,  // the agent does not serve it
  kBusy = 5,       // too many readers at the moment
  kClosing = 6,    // the agent is closing
};

// The accepting side's answer: on a control stream, on an accepted data stream, and to a request
// for metadata.
struct Welcome {
  uint16_t version = kStreamVersion;
  WelcomeCode code = WelcomeCode::kJoin;
  LinkId link{};
  uint64_t bytes = 0;  // size of the metadata that follows
};
inline constexpr size_t kWelcomeBytes = 32;
inline constexpr uint32_t kWelcomeMagic = 0x4158564B;  // "KVXA", the first bytes of a welcome

// The frames of the control stream after preamble and welcome, in both directions.
enum class ControlKind : uint8_t {
  kMessage = 1,  // one Endpoint::Send
  kReady = 2,    // accepting side: all streams of the link have joined
  kClosing = 3,  // the sender closes; the payload is the reason
  kFrame = 4,    // a frame between the two backends
};
struct ControlHead {
  uint32_t bytes = 0;
  ControlKind kind = ControlKind::kMessage;
};
inline constexpr size_t kControlHeadBytes = 8;

void Encode(const Preamble& preamble, std::span<std::byte, kPreambleBytes> out);
void Encode(const Welcome& welcome, std::span<std::byte, kWelcomeBytes> out);
void Encode(const ControlHead& head, std::span<std::byte, kControlHeadBytes> out);

// A preamble of another version decodes to that version alone, so that it can be answered.
absl::StatusOr<Preamble> DecodePreamble(std::span<const std::byte, kPreambleBytes> in);
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte, kWelcomeBytes> in);
absl::StatusOr<ControlHead> DecodeControlHead(std::span<const std::byte, kControlHeadBytes> in);

// The error of the decoders for malformed bytes.
absl::Status Damaged(const char* what);

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_HELLO_H_
