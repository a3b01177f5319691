// What two ucx backends say to each other: frames, each one active message of UCX. docs/ucx.md has
// the table. Little-endian, except immediates. Decoding never trusts a length.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_UCX_FRAMES_H_
#define KVXFER_BACKENDS_UCX_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "kvxfer/types.h"

namespace kvxfer::ucx {

inline constexpr uint16_t kWireVersion = 1;
// A whole frame: below what UCX's transports carry in one fragment (8 KiB, less their own heads),
// so that nothing is put together on the way.
inline constexpr size_t kMaxFrameBytes = 7680;
inline constexpr size_t kMaxMessageBytes = 256 * 1024;
// Data frames of one direction of a link that were not acknowledged: what a slow peer has to keep,
// and what a cancel comes too late for. Acknowledged by every kCreditEvery.
inline constexpr uint32_t kDataWindow = 16;
inline constexpr uint32_t kCreditEvery = 4;
inline constexpr size_t kMaxOpBytes = 1024 * 1024;
inline constexpr size_t kMaxOpRuns = 256;

enum class FrameKind : uint8_t {
  kHello = 1,       // dialler: a Hello; out of the order of any link
  kWelcome = 2,     // accepting side: its cookie of the link, and id of its path
  kAuthorized = 3,  // accepting side: data may come
  kMessage = 4,     // part of one Endpoint::Send
  kWrite = 5,       // dialler: pieces with their bytes
  kRead = 6,        // dialler: pieces that are asked for
  kReadData = 7,    // accepting side: the next bytes of read `number`
  kFence = 8,       // dialler: nothing of `transfer` follows
  kBye = 9,         // the sender's last; its text says why. Number 0: it does not know the link
  kCredit = 10,     // data frames that the sender has taken, `number` in all
};

// Bits of FrameHead::flags.
inline constexpr uint16_t kLast = 1;       // of an op, of a read, of a message
inline constexpr uint16_t kImmediate = 2;  // kWrite with kLast: report `immediate`
inline constexpr uint16_t kVoid = 4;       // kReadData with kLast: the read is not served

struct FrameHead {
  FrameKind kind = FrameKind::kMessage;
  uint16_t flags = 0;
  uint32_t bytes = 0;      // behind the head
  uint64_t cookie = 0;     // the receiver's, of the link; kHello: 0
  uint64_t order = 0;      // frames of one direction of a link count from 1
  uint64_t transfer = 0;   // kWrite, kRead, kFence
  uint32_t number = 0;     // kRead, kReadData, kCredit
  uint32_t immediate = 0;  // kWrite
};
inline constexpr size_t kFrameHeadBytes = 40;
inline constexpr size_t kMaxBodyBytes = kMaxFrameBytes - kFrameHeadBytes;
// The address of a worker goes into a hello, with 144 bytes of other things.
inline constexpr size_t kMaxWorkerBytes = kMaxBodyBytes - 144;

// One contiguous piece of the accepting side's memory. In kWrite its bytes follow it.
struct Piece {
  uint64_t address = 0;
  uint32_t bytes = 0;
  uint32_t rkey = 0;
};
inline constexpr size_t kPieceBytes = 16;
static_assert(kMaxOpRuns * kPieceBytes <= kMaxBodyBytes, "a read is asked for in one frame");

struct Welcome {
  uint64_t cookie = 0;
  uint64_t path = 0;  // as Hello::path
};

// From the side that connects.
struct Hello {
  uint16_t version = kWireVersion;
  // The dialler's UCX endpoint reports the failure of its peer; both ends have to, or none.
  bool reports_failure = true;
  uint64_t cookie = 0;   // the dialler's, of the link
  uint64_t path = 0;     // random, of the dialler's UCX endpoint
  Incarnation target{};  // whom the dialler means
  Incarnation dialler{};
  HostIdentity host{};   // of the dialler: boot_id, pid_namespace, pid and start_time
  std::string worker{};  // address of the dialler's worker
};

// What a backend's Address is.
struct Address {
  Incarnation incarnation{};
  std::string worker{};
};

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out);
void Encode(const Piece& piece, std::span<std::byte, kPieceBytes> out);
std::string Encode(const Hello& hello);
std::string Encode(const Address& address);
std::string Encode(const Welcome& welcome);

// The head of a whole frame: `bytes` is what follows it.
absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte> frame);
Piece DecodePiece(std::span<const std::byte, kPieceBytes> in);
// One of another version decodes, with that version alone, so that it can be told.
absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> in);
absl::StatusOr<Address> DecodeAddress(std::string_view in);
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte> in);

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_FRAMES_H_
