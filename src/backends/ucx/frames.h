// The wire format between two ucx backends: frames, each one active message of UCX. docs/ucx.md has
// the table. All integers are little-endian, except immediates. Decoding never trusts a length.
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
// The largest frame: what UCX's tcp sends as one segment (64 KiB, less UCX's own headers). Through
// shared memory UCX splits a frame into pieces of 8 KiB and reassembles it, which is faster than
// frames of that size.
inline constexpr size_t kMaxFrameBytes = 65'280;
inline constexpr size_t kMaxMessageBytes = 256 * 1024;
// The most bytes of data frames that may be unacknowledged in one direction of an endpoint. This
// bounds what a slow peer has to buffer, and what a cancel comes too late for. The receiver
// acknowledges every kCreditEvery bytes. The value is what the queue of UCX's shared memory holds
// (256 times 8 KiB, freed in halves): UCX does not report when a full queue has space again.
inline constexpr uint32_t kDataWindow = 1024 * 1024;
inline constexpr uint32_t kCreditEvery = kDataWindow / 4;
// How many bytes of the window a data frame of `frame_bytes` (with its head) uses. A small frame
// uses an entry in the queues of UCX and of the receiver like a large one, so it counts as at least
// 1/128 of the window: no more than 128 frames are unacknowledged.
inline constexpr uint32_t ChargeOf(size_t frame_bytes) {
  return static_cast<uint32_t>(frame_bytes < kDataWindow / 128 ? kDataWindow / 128 : frame_bytes);
}
inline constexpr size_t kMaxOpBytes = 1024 * 1024;
inline constexpr size_t kMaxOpPieces = 256;

enum class FrameKind : uint8_t {
  kHello = 1,       // connecting side: a Hello; not part of any endpoint's order
  kWelcome = 2,     // accepting side: its cookie of the endpoint and the id of its path
  kAuthorized = 3,  // accepting side: data is allowed from now on
  kMessage = 4,     // both: part of one Endpoint::Send
  kWrite = 5,       // connecting side: `number` pieces, then their bytes
  kRead = 6,        // connecting side: the pieces that it asks for
  kReadData = 7,    // accepting side: the next bytes of read `number`
  kFence = 8,       // connecting side: nothing of `transfer` follows
  // Both: the last frame, with the reason as text; order 0: the sender does not know the endpoint.
  kBye = 9,
  // Both: ChargeOf all data frames that the sender has taken is `number`, mod 2^32.
  kCredit = 10,
};

// Bits of FrameHead::flags.
inline constexpr uint16_t kLast = 1;       // the last frame of an op, of a read or of a message
inline constexpr uint16_t kImmediate = 2;  // kWrite with kLast: report `immediate`
inline constexpr uint16_t kVoid = 4;  // kReadData with kLast: the target does not serve the read

struct FrameHead {
  FrameKind kind = FrameKind::kMessage;
  uint16_t flags = 0;
  uint32_t bytes = 0;      // of the body, which follows the head
  uint64_t cookie = 0;     // the receiver's cookie of the endpoint; 0 in kHello
  uint64_t order = 0;      // number of the frame, from 1, in its direction of the endpoint
  uint64_t transfer = 0;   // kWrite, kRead, kFence
  uint32_t number = 0;     // kWrite, kRead, kReadData, kCredit
  uint32_t immediate = 0;  // kWrite
};
inline constexpr size_t kFrameHeadBytes = 40;
inline constexpr size_t kMaxBodyBytes = kMaxFrameBytes - kFrameHeadBytes;
// The largest address of a worker; it has to fit into a hello.
inline constexpr size_t kMaxWorkerBytes = 7 * 1024;

// A WireRun names one piece of the target's memory.
using net::DecodeWireRun;
using net::kWireRunBytes;
using net::WireRun;
static_assert(kMaxOpPieces * kWireRunBytes <= kMaxBodyBytes, "a read is asked for in one frame");

struct Welcome {
  uint64_t cookie = 0;
  uint64_t path = 0;  // like Hello::path
};

// Sent by the connecting side.
struct Hello {
  uint16_t version = kWireVersion;
  // The connecting side's UCX endpoint reports the failure of its peer. UCX needs the same setting
  // at both ends.
  bool reports_failure = true;
  uint64_t cookie = 0;   // the connecting side's cookie of the endpoint
  uint64_t path = 0;     // random id of the connecting side's UCX endpoint
  Incarnation target{};  // the agent that the connecting side means
  Incarnation dialler{};
  HostIdentity host{};   // the connecting side's boot_id, pid_namespace, pid and start_time
  std::string worker{};  // address of the connecting side's worker
};

// How a worker is reached, as the first letter of a place: the worker's UCX address follows, or
// "host:port" (numeric) of its listener.
inline constexpr char kByWorker = 'w';
inline constexpr char kBySocket = 's';
// Never sent: begins the local name of an accepted connection.
inline constexpr char kAccepted = 'a';

// The content of BackendInfo::address.
struct Address {
  Incarnation incarnation{};
  std::string place{};
};

void Encode(const FrameHead& head, std::span<std::byte, kFrameHeadBytes> out);
std::string Encode(const Hello& hello);
std::string Encode(const Address& address);
std::string Encode(const Welcome& welcome);

// Decodes the head of a whole frame and checks that FrameHead::bytes is what follows it.
absl::StatusOr<FrameHead> DecodeFrameHead(std::span<const std::byte> frame);

// The body of a kWrite: the pieces, each of kWireRunBytes, and exactly as many bytes as they name.
struct WriteBody {
  std::span<const std::byte> pieces;
  std::span<const std::byte> bytes;
};
absl::StatusOr<WriteBody> DecodeWrite(uint32_t number, std::span<const std::byte> body);

// A hello of another version is decoded to its version alone, so that the caller can report it.
absl::StatusOr<Hello> DecodeHello(std::span<const std::byte> in);
absl::StatusOr<Address> DecodeAddress(std::string_view in);
absl::StatusOr<Welcome> DecodeWelcome(std::span<const std::byte> in);

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_FRAMES_H_
