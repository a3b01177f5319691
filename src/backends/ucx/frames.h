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
#include "src/transport/regions.h"

namespace kvxfer::ucx {

inline constexpr uint16_t kWireVersion = 2;
// A whole frame: what UCX's tcp takes in one piece (64 KiB, less its own heads). Through shared
// memory UCX cuts it in pieces of 8 KiB and puts them together again, which is faster than frames
// of that size.
inline constexpr size_t kMaxFrameBytes = 65'280;
inline constexpr size_t kMaxMessageBytes = 256 * 1024;
// Bytes of data frames of one direction of a link that were not acknowledged: what a slow peer has
// to keep, and what a cancel comes too late for. They are acknowledged by every kCreditEvery. It is
// what the queue of UCX's shared memory (256 times 8 KiB, freed by halves) has room for: UCX does
// not tell when one that was full no longer is.
inline constexpr uint32_t kDataWindow = 1024 * 1024;
inline constexpr uint32_t kCreditEvery = kDataWindow / 4;
// What a data frame of so many bytes, head and all, counts for: small ones take a place in the
// queues of UCX and of the receiver each, so that kDataWindow is at most 128 frames.
inline constexpr uint32_t ChargeOf(size_t frame_bytes) {
  return static_cast<uint32_t>(frame_bytes < kDataWindow / 128 ? kDataWindow / 128 : frame_bytes);
}
inline constexpr size_t kMaxOpBytes = 1024 * 1024;
inline constexpr size_t kMaxOpRuns = 256;

enum class FrameKind : uint8_t {
  kHello = 1,       // dialler: a Hello; out of the order of any link
  kWelcome = 2,     // accepting side: its cookie of the link, and id of its path
  kAuthorized = 3,  // accepting side: data may come
  kMessage = 4,     // part of one Endpoint::Send
  kWrite = 5,       // dialler: `number` pieces, then their bytes
  kRead = 6,        // dialler: pieces that are asked for
  kReadData = 7,    // accepting side: the next bytes of read `number`
  kFence = 8,       // dialler: nothing of `transfer` follows
  kBye = 9,         // the sender's last; its text says why. Number 0: it does not know the link
  kCredit = 10,     // ChargeOf the data frames that the sender has taken, `number` in all, mod 2^32
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
  uint32_t number = 0;     // kWrite, kRead, kReadData, kCredit
  uint32_t immediate = 0;  // kWrite
};
inline constexpr size_t kFrameHeadBytes = 40;
inline constexpr size_t kMaxBodyBytes = kMaxFrameBytes - kFrameHeadBytes;
// The address of a worker; it goes into a hello.
inline constexpr size_t kMaxWorkerBytes = 7 * 1024;

// Pieces of the accepting side's memory.
using net::DecodeWireRun;
using net::kWireRunBytes;
using net::WireRun;
static_assert(kMaxOpRuns * kWireRunBytes <= kMaxBodyBytes, "a read is asked for in one frame");

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

// Where a worker is reached, behind one of these letters: its UCX address, or "host:port", numeric,
// of its listener.
inline constexpr char kByWorker = 'w';
inline constexpr char kBySocket = 's';
// Never told to anyone: the name of a connection that was accepted.
inline constexpr char kAccepted = 'a';

// What a backend's Address is.
struct Address {
  Incarnation incarnation{};
  std::string place{};
};

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out);
std::string Encode(const Hello& hello);
std::string Encode(const Address& address);
std::string Encode(const Welcome& welcome);

// The head of a whole frame: `bytes` is what follows it.
absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte> frame);

// What a kWrite carries: pieces, each kWireRunBytes, and as many bytes as those have in all.
struct WriteBody {
  std::span<const std::byte> pieces;
  std::span<const std::byte> bytes;
};
absl::StatusOr<WriteBody> DecodeWrite(uint32_t number, std::span<const std::byte> body);

// One of another version decodes, with that version alone, so that it can be told.
absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> in);
absl::StatusOr<Address> DecodeAddress(std::string_view in);
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte> in);

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_FRAMES_H_
