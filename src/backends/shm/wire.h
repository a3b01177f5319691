// What shm backends send each other: addresses and keys (text, in metadata), and the frames on the
// socket of one connection. "Dialler" is the connecting side, "acceptor" the accepting side.
//
//   dialler → acceptor   kDial      first; which process connects
//   acceptor → dialler   kOffer     first, once authorised: the probe words and a probe memfd
//   acceptor → dialler   kFile      one memfd; all of them right after kOffer, later ones at once
//   acceptor → dialler   kForget    that memfd no longer has a registration
//   dialler → acceptor   kRing      RingFrame::kRings of src/transport/ring_pair.h
//   both                 kBell      RingFrame::kBell
//   both                 kGrow      RingFrame::kGrow
//   both                 kNotGrown     RingFrame::kNotGrown
//   both                 kNoRings   instead of kRing, or of the acceptor's kBell: the sender uses
//   no
//                                   rings, and why, as text
//   both                 kMessage   one part of an agent's message; `more`: another part follows.
//                                   None after the first message that went through a ring
//   dialler → acceptor   kHold      GPUs of the dialler begin to copy to and from the memfds, so
//                                   that the end of the socket does not prove that they have ended
//   dialler → acceptor   kQuiet     they have ended, and none follow; before the dialler closes
//   both                 kBye       why the sender closes, as text; nothing follows but kQuiet
//
// Thread-safety: pure functions. Decoding never trusts a length.

#ifndef KVXFER_BACKENDS_SHM_WIRE_H_
#define KVXFER_BACKENDS_SHM_WIRE_H_

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::shm {

inline constexpr uint32_t kWireVersion = 4;

struct Address {
  uint32_t pid = 0;
  uint64_t start_time = 0;  // of that process, clock ticks since boot
  std::string socket;       // abstract name, without the leading zero byte
};
std::string Encode(const Address& address);
absl::StatusOr<Address> DecodeAddress(std::string_view text);

// The text of Registration::key: "mapped:<file>:<offset>" or "attached".
struct RegionKey {
  bool mapped = false;
  uint64_t file = 0;    // FileBody::id
  uint64_t offset = 0;  // of the region in that file, in bytes
};
std::string Encode(const RegionKey& key);
absl::StatusOr<RegionKey> DecodeKey(std::string_view text);

// OK: a process at `there` can be a peer of one at `here`. Unavailable: why not.
absl::Status CheckReachable(const HostIdentity& here, const HostIdentity& there);

enum class FrameType : uint32_t {
  kDamaged = 0,
  kDial,
  kOffer,
  kFile,
  kForget,
  kMessage,
  kBye,
  kRing,
  kBell,
  kGrow,
  kNotGrown,
  kNoRings,
  kHold,
  kQuiet
};

struct FrameHeader {
  FrameType type = FrameType::kBye;
  uint32_t more = 0;
};

struct DialBody {
  uint32_t version = kWireVersion;
  uint32_t pid = 0;
  uint64_t start_time = 0;
};

struct OfferBody {
  uint64_t probe_address = 0;  // of two u64: one to read, one to write
  uint64_t probe_value = 0;    // what the first word holds while the connection exists
  uint64_t mapped_value = 0;   // the first u64 of the probe memfd
  uint32_t dumpable = 0;       // PR_GET_DUMPABLE of the acceptor
};

struct FileBody {
  uint64_t id = 0;
  int32_t error = 0;  // errno of the failed send: no descriptor is attached
};

struct ForgetBody {
  uint64_t id = 0;
};

template <typename Io>
void Fields(Io& io, wire::Ref<Io, FrameHeader> header) {
  wire::EnumField(io, "type", header.type, 0, UINT32_MAX);  // an unknown one is out of place
  io.Int("more", header.more);
}
inline constexpr size_t kFrameHeaderBytes = 8;
template <typename Io>
void Fields(Io& io, wire::Ref<Io, DialBody> dial) {
  io.Int("version", dial.version);
  io.Int("pid", dial.pid);
  io.Int("start_time", dial.start_time);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, OfferBody> offer) {
  io.Int("probe_address", offer.probe_address);
  io.Int("probe_value", offer.probe_value);
  io.Int("mapped_value", offer.mapped_value);
  io.Int("dumpable", offer.dumpable);
  io.Reserved(4);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, FileBody> file) {
  io.Int("id", file.id);
  io.Int("error", file.error);
  io.Reserved(4);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, ForgetBody> forget) {
  io.Int("id", forget.id);
}

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_WIRE_H_
