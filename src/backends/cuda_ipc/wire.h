// What two cuda_ipc backends send each other, and what metadata contains about one.
//
// On the control stream (kFrame):
//   accepting → connecting   Hello: the word that identifies the lifeline of this endpoint
//   accepting → connecting   Joined: the lifeline has arrived and its process was accepted
//   both                     OverRings: all later messages of the sender come through its ring
//   both                     Remainder: at the end, what the ring had no space for; it follows what
//                            the ring holds
// On the lifeline (lifeline.h), one packet each:
//   connecting → accepting   kDial: this is the lifeline of that endpoint
//   connecting → accepting   kAsk: asks for the handles of a region
//   accepting → connecting   kRegion, then a kPart for each allocation, in order; or kRefused
//   accepting → connecting   kForget: a region was deregistered
//   connecting → accepting   kQuiet: every copy is over and none begins; the last packet
//   connecting → accepting   kRings, right after kDial; and from both kBell, kGrow and kNotGrown:
//   the
//                            frames of src/transport/ring_pair.h
//   both                     kNoRings: instead of kRings, or of the accepting side's kBell: the
//                            sender uses no rings, and why
//
// Both processes are on one host and have the same layout of these structs, which kDial checks.
// Lengths, counts and ranges are checked as if they came from a stranger.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_CUDA_IPC_WIRE_H_
#define KVXFER_BACKENDS_CUDA_IPC_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/base/text.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::cuda_ipc {

inline constexpr uint32_t kWireVersion = 2;

// A random word that identifies one endpoint.
using Word = std::array<uint8_t, 16>;

// --- metadata ---

// Where an agent can be reached.
struct MetadataAddress {
  uint64_t ipc_namespace = 0;  // inode number of /proc/self/ns/ipc; 0: unknown
  std::string listener{};      // abstract name of the socket where lifelines arrive
  std::string control{};       // for control streams (src/transport/sockets/address.h)
};
std::string Encode(const MetadataAddress& at);
// InvalidArgument says what is wrong.
absl::StatusOr<MetadataAddress> DecodeMetadataAddress(std::string_view text);

// Identifies a region. It opens nothing by itself.
struct RegionKey {
  uint64_t region = 0;  // the owner's number of the registration
  uint32_t rkey = 0;
  std::string device{};  // cuda::Device::uuid
};
std::string Encode(const RegionKey& key);
absl::StatusOr<RegionKey> DecodeKey(std::string_view text);

// OK: a peer at `there` may be tried. Unavailable: it is on another host. FailedPrecondition: it is
// on this host but out of reach; with the fix.
absl::Status CheckReachable(const HostIdentity& here, const HostIdentity& there);

// --- the control stream ---

struct Hello {
  Word word{};
};
struct Joined {};
struct OverRings {};
// A message or a part of one.
struct Remainder {
  static constexpr size_t kMaxBytes = 8 * 1024;  // also fits before the endpoint is authorised
  uint8_t more = 0;                              // another part follows
  uint8_t large = 0;  // the sender's ring has grown, so what precedes this is in the large one
  uint16_t bytes = 0;
  std::string body{};
};
using Frame = std::variant<Hello, Joined, OverRings, Remainder>;
std::string Encode(const Frame& frame);
absl::StatusOr<Frame> Decode(std::span<const std::byte> bytes);

// --- the lifeline ---

enum class PacketType : uint32_t {
  kDial = 1,
  kAsk,
  kQuiet,
  kRegion,
  kPart,
  kRefused,
  kForget,
  kRings,
  kBell,
  kGrow,
  kNotGrown,
  kNoRings
};
inline constexpr size_t kMaxPacketBytes = 2048;

struct DialPacket {
  uint32_t version = kWireVersion;
  uint64_t start_time = 0;  // of the sender's process, HostIdentity::start_time
  Word word{};
};

struct AskPacket {
  uint64_t region = 0;
  uint32_t rkey = 0;
};

struct QuietPacket {};

struct RegionPacket {
  uint64_t region = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;            // kvxfer::Access
  uint32_t parts = 0;             // how many kPart packets follow
  std::array<char, 32> device{};  // uuid
  int32_t ordinal = 0;            // of the device in its owner's process
  uint32_t reserved = 0;
};

// How an allocation is given to another process.
enum class HandleForm : uint32_t {
  kNone = 0,    // same process: the address suffices
  kLegacy = 1,  // cuIpcGetMemHandle
  kFile = 2,    // a file descriptor, attached to the packet
  kFabric = 3,  // CU_MEM_HANDLE_TYPE_FABRIC
};

struct PartPacket {
  uint64_t region = 0;
  uint64_t base = 0;  // of the part, within the region
  uint64_t bytes = 0;
  uint64_t allocation_base = 0;  // of the whole allocation, in its owner's address space
  uint64_t allocation_bytes = 0;
  uint64_t buffer_id = 0;  // unique among all allocations of the process
  HandleForm form = HandleForm::kNone;
  uint32_t kind = 0;  // cuda::AllocationKind
  std::array<uint8_t, 64> handle{};
};

struct RefusedPacket {
  uint64_t region = 0;
  uint32_t code = 0;  // absl::StatusCode
  std::string why{};  // for a person
};

struct ForgetPacket {
  uint64_t region = 0;
};

struct NoRingsPacket {
  std::string why{};  // for a person
};

template <typename Io>
void Fields(Io& io, wire::Ref<Io, DialPacket> dial) {
  io.Int("version", dial.version);
  io.Reserved(4);
  io.Int("start_time", dial.start_time);
  io.Bytes("word", dial.word);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, AskPacket> ask) {
  io.Int("region", ask.region);
  io.Int("rkey", ask.rkey);
  io.Reserved(4);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, QuietPacket> /*quiet*/) {
  io.Reserved(8);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, RegionPacket> region) {
  io.Int("region", region.region);
  io.Int("base", region.base);
  io.Int("bytes", region.bytes);
  io.Int("access", region.access);
  io.Int("parts", region.parts);
  io.Bytes("device", region.device);
  io.Int("ordinal", region.ordinal);
  io.Reserved(4);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, PartPacket> part) {
  io.Int("region", part.region);
  io.Int("base", part.base);
  io.Int("bytes", part.bytes);
  io.Int("allocation_base", part.allocation_base);
  io.Int("allocation_bytes", part.allocation_bytes);
  io.Int("buffer_id", part.buffer_id);
  wire::EnumField(io, "form", part.form, 0, UINT32_MAX);  // PeerRegion::Check refuses unknown ones
  io.Int("kind", part.kind);
  io.Bytes("handle", part.handle);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, RefusedPacket> refused) {
  io.Int("region", refused.region);
  io.Int("code", refused.code);
  io.Reserved(4);
  io.RestOfWords("why", refused.why, kMaxPeerTextBytes);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, ForgetPacket> forget) {
  io.Int("region", forget.region);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, NoRingsPacket> none) {
  io.RestOfWords("why", none.why, kMaxPeerTextBytes);
}

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_WIRE_H_
