// What two cuda_ipc backends send each other, and what metadata contains about one.
//
// On the control stream (kFrame):
//   accepting → connecting   Hello: the word that identifies the lifeline of this link
//   accepting → connecting   Joined: the lifeline has arrived and its process was accepted
// On the lifeline (lifeline.h), one packet each:
//   connecting → accepting   kDial: this is the lifeline of that link
//   connecting → accepting   kAsk: asks for the handles of a region
//   accepting → connecting   kRegion, then a kPart for each allocation, in order; or kRefused
//   accepting → connecting   kForget: a region was deregistered
//   connecting → accepting   kQuiet: every copy is over and none begins; the last packet
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer::cuda_ipc {

inline constexpr uint32_t kWireVersion = 1;

// A random word that identifies one link.
using Word = std::array<uint8_t, 16>;

// --- metadata ---

// Where an agent can be reached.
struct Whereabouts {
  uint64_t ipc_namespace = 0;  // inode number of /proc/self/ns/ipc; 0: unknown
  std::string desk{};          // abstract name of the socket where lifelines arrive
  std::string control{};       // for control streams (src/transport/sockets/address.h)
};
std::string Encode(const Whereabouts& at);
// InvalidArgument says what is wrong.
absl::StatusOr<Whereabouts> DecodeWhereabouts(std::string_view text);

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
std::array<std::byte, 17> Encode(const Hello& hello);
std::array<std::byte, 1> Encode(const Joined& joined);
std::optional<Hello> DecodeHello(std::span<const std::byte> frame);
bool IsJoined(std::span<const std::byte> frame);

// --- the lifeline ---

enum class PacketType : uint32_t { kDial = 1, kAsk, kQuiet, kRegion, kPart, kRefused, kForget };
inline constexpr size_t kMaxPacketBytes = 2048;

struct DialPacket {
  uint32_t version = kWireVersion;
  uint32_t reserved = 0;
  uint64_t start_time = 0;  // of the sender's process, HostIdentity::start_time
  Word word{};
};

struct AskPacket {
  uint64_t region = 0;
  uint32_t rkey = 0;
  uint32_t reserved = 0;
};

struct QuietPacket {
  uint64_t reserved = 0;
};

struct RegionPacket {
  uint64_t region = 0;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint32_t access = 0;   // kvxfer::Access
  uint32_t parts = 0;    // how many kPart packets follow
  char device[32] = {};  // uuid
  int32_t ordinal = 0;   // of the device in its owner's process
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
  uint8_t handle[64] = {};
};

// Followed by text.
struct RefusedPacket {
  uint64_t region = 0;
  uint32_t code = 0;  // absl::StatusCode
  uint32_t reserved = 0;
};

struct ForgetPacket {
  uint64_t region = 0;
};

template <typename Body>
std::string_view AsBytes(const Body& body) {
  static_assert(std::is_trivially_copyable_v<Body>);
  static_assert(std::has_unique_object_representations_v<Body>);  // no uninitialised padding
  return {reinterpret_cast<const char*>(&body), sizeof(body)};
}

// The body at the front of `bytes`; nothing if they are too few.
template <typename Body>
std::optional<Body> FrontOf(std::string_view bytes) {
  if (bytes.size() < sizeof(Body)) return std::nullopt;
  Body body;
  std::memcpy(&body, bytes.data(), sizeof(body));
  return body;
}
template <typename Body>
std::optional<Body> FromBytes(std::string_view bytes) {
  return bytes.size() == sizeof(Body) ? FrontOf<Body>(bytes) : std::nullopt;
}

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_WIRE_H_
