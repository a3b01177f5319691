// The frames of the control channel, protocol version 7: encoding and decoding only.
//
// Integers are little-endian, except immediates, which are big-endian as on NICs. Every message of
// a backend is one envelope:
//   u8 type | u8 flags (0) | u16 reserved (0) | u32 body bytes | u64 sequence | u64 ack | body
// `sequence` is 0 for frames outside the numbered channel (FrameType says which). `ack` is the
// highest sequence that was received in order from the other side. docs/wire-format.md describes
// the bodies. Decoding trusts no length; a damaged frame is an InvalidArgument that names the
// field.
//
// Thread-safety: functions without state.

#ifndef KVXFER_CORE_PROTOCOL_WIRE_FORMAT_H_
#define KVXFER_CORE_PROTOCOL_WIRE_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_cache.h"
#include "kvxfer/types.h"
#include "src/core/base/signing_key.h"
#include "src/core/kv/kv_range.h"

namespace kvxfer {

inline constexpr uint16_t kMinProtocolVersion = 7;
inline constexpr uint16_t kMaxProtocolVersion = 7;

// An immediate is slot (upper 20 bits) | generation (lower 12 bits).
inline constexpr uint32_t kSlotBits = 20;
inline constexpr uint32_t kGenerationBits = 12;
inline constexpr uint32_t kGenerationMask = (1u << kGenerationBits) - 1;

// What one side may make the other store. A peer that exceeds these limits violates the protocol.
inline constexpr size_t kMaxSessionTransfers = 16'384;  // begun, not yet answered
inline constexpr size_t kMaxQuestions = 1024;           // unanswered Quiesce calls
// Unanswered questions about deregistered regions; further regions are collected into one question,
// which is sent once another is answered.
inline constexpr size_t kMaxRevocations = 1024;
// Regions of one agent. Metadata has no more, and a peer remembers which of them are gone.
inline constexpr size_t kMaxRegions = 262'144;
// Region ids in one QUIESCE. The limit keeps the message below 128 KiB, the smallest
// Capabilities::max_message_bytes.
inline constexpr size_t kMaxListedRegions = 30'000;
// Runs of regions in one page.
inline constexpr size_t kMaxRegionRuns = 16'000;

struct SlotRef {
  uint32_t slot = 0;
  uint32_t generation = 0;
  bool operator==(const SlotRef&) const = default;
};
constexpr uint32_t EncodeImmediate(SlotRef ref) {
  return (ref.slot << kGenerationBits) | (ref.generation & kGenerationMask);
}
constexpr SlotRef DecodeImmediate(uint32_t immediate) {
  return {.slot = immediate >> kGenerationBits, .generation = immediate & kGenerationMask};
}
constexpr uint32_t NextGeneration(uint32_t generation) {
  return (generation + 1) & kGenerationMask;
}

struct SlotRange {
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const SlotRange&) const = default;
};

enum class FrameType : uint8_t {
  kHello = 1,    // initiator → target, first on every connection
  kHelloAck,     // target → initiator
  kRefuse,       // target → initiator, then the connection closes
  kOpen,         // initiator → target; numbered, like all down to kQuiesce
  kAmend,        // initiator → target: lanes that replace discarded ones
  kAbort,        // initiator → target
  kDiscard,      // initiator → target: lanes of a failed rail
  kSlotRequest,  // initiator → target
  kQuiet,        // initiator → target: answers kQuiesce
  kReleased,     // target → initiator: arrived transfers, freed slots, aborts, discards
  kSlotGrant,    // target → initiator
  kCredit,       // target → initiator
  kQuiesce,      // target → initiator
  kPing,         // unnumbered; answered by kPong
  kPong,
  kAck,         // unnumbered; only the envelope's ack
  kNotUsed,     // two messages in one before version 7; refused like an unknown type
  kFenceRail,   // initiator → target, unnumbered: on the connection whose rail failed
  kRailFenced,  // target → initiator, unnumbered: answers kFenceRail on the same connection
  kRetired,     // fetch-begin in versions 4 and 5; refused like an unknown type
  kFetchEnd,  // initiator → target, numbered, like the next: the last byte was read, or the fetch
              // was given up
  kKvAnswer,  // target → initiator: a KV part is refused
  kStageAsk,  // initiator → target, numbered, down to kStaged: asks for staging buffers
  kStageLend,    // target → initiator: buffers that it may use
  kStageRecall,  // target → initiator: others wait for buffers
  kStageBack,    // initiator → target: buffers that it no longer uses
  kStage,        // initiator → target: what to copy between a buffer and the target's memory
  kStaged,       // target → initiator: answers kStage
  kRegions,      // target → initiator, unnumbered: a page of live regions
  kLeaseRead,    // initiator → target, numbered, like the next: asks to read under a lease
  kLeaseAnswer,  // target → initiator: answers kLeaseRead and kFetchEnd
  kKey,          // both ways, unnumbered: a public key and a nonce, see handshake.h
  kProof,        // initiator → target, unnumbered: a signature
  kLinkGone,     // initiator → target, numbered: a connection has ended at the side that dialled
  kLast = kLinkGone,  // no frame: the highest type that DecodeEnvelope takes
};

inline constexpr size_t kEnvelopeBytes = 24;

struct Envelope {
  FrameType type = FrameType::kAck;
  uint64_t sequence = 0;
  uint64_t ack = 0;
  std::span<const std::byte> body{};  // points into the decoded buffer
};

// See handshake.h.
using Nonce = std::array<uint8_t, 32>;

struct KeyFrame {
  uint64_t link = 0;  // from the side that dials: the number of the connection, from 1; else 0
  PublicKey key{};
  Nonce nonce{};
  // From the side that accepts: 64 bytes; else empty. A string, for it is not in what it signs.
  std::string signature{};
  bool operator==(const KeyFrame&) const = default;
};

struct ProofFrame {
  Signature signature{};
  bool operator==(const ProofFrame&) const = default;
};

enum class AuthMethod : uint8_t { kNone = 0 };

struct HelloFrame {
  uint16_t min_version = kMinProtocolVersion;
  uint16_t max_version = kMaxProtocolVersion;
  Incarnation initiator{};
  Incarnation target{};  // the incarnation that the initiator expects; any other one refuses
  // What each side calls the session. The sender's is random, not 0. The receiver's is 0 as long as
  // the sender does not know it.
  uint64_t session = 0;
  uint64_t peer_session = 0;
  std::vector<AuthMethod> auth{AuthMethod::kNone};
  std::string name{};  // the initiator's name
  bool operator==(const HelloFrame&) const = default;
};

struct HelloAckFrame {
  uint16_t version = kMaxProtocolVersion;
  AuthMethod auth = AuthMethod::kNone;
  Incarnation target{};
  uint64_t session = 0;  // what the accepting side calls it; not 0
  // Pages (RegionsFrame) say which of the target's regions 1 to last_region are live.
  uint32_t last_region = 0;
  bool operator==(const HelloAckFrame&) const = default;
};

struct RegionRun {
  uint32_t first = 0;
  uint32_t last = 0;
  bool operator==(const RegionRun&) const = default;
};

// A page about the target's regions `first` to `last`: those in a run are live, the others are
// gone. Pages may overtake each other and the hello-ack. No two pages of a connection are about the
// same region.
struct RegionsFrame {
  Incarnation target{};
  uint32_t first = 1;
  uint32_t last = 1;
  std::vector<RegionRun> live{};  // ascending
  bool operator==(const RegionsFrame&) const = default;
};

enum class RefuseReason : uint8_t {
  kVersion = 1,    // no common version
  kIncarnation,    // the target has another incarnation than expected
  kSession,        // the target no longer knows the session: start a new one
  kAuth,           // no common authentication method
  kClosing,        // the target is shutting down
  kNotProved = 8,  // the initiator is not the incarnation that it says it is
  kCarrier = 10,  // the target sends no control frames over such a connection, and has no other one
};

struct RefuseFrame {
  RefuseReason reason = RefuseReason::kClosing;
  uint16_t min_version = kMinProtocolVersion;
  uint16_t max_version = kMaxProtocolVersion;
  Incarnation target{};
  std::string text{};
  bool operator==(const RefuseFrame&) const = default;
};

struct LaneFrame {
  SlotRef ref{};
  uint32_t arrivals = 0;  // number of immediates that the lane sends, >= 1
  bool operator==(const LaneFrame&) const = default;
};

// What the `notification` of an OpenFrame is.
enum class Notice : uint8_t {
  kNone = 0,
  kNotification,  // for the application
  kKvPart,        // a KvPartFrame
};

struct OpenFrame {
  uint64_t transfer = 0;
  uint64_t order = 0;  // number in the session's order, from 1; 0: unordered
  Notice notice = Notice::kNone;
  std::vector<LaneFrame> lanes{};
  std::string notification{};
  bool operator==(const OpenFrame&) const = default;
};

struct AmendFrame {
  uint64_t transfer = 0;
  std::vector<LaneFrame> lanes{};
  bool operator==(const AmendFrame&) const = default;
};

struct AbortFrame {
  uint64_t transfer = 0;
  uint64_t order = 0;
  bool opened = false;           // kOpen was sent before
  std::vector<SlotRef> slots{};  // lanes not known to be free
  bool operator==(const AbortFrame&) const = default;
};

struct DiscardFrame {
  uint64_t transfer = 0;
  std::vector<SlotRef> slots{};
  bool operator==(const DiscardFrame&) const = default;
};

struct SlotRequestFrame {
  uint32_t count = 0;  // slots asked for
  bool operator==(const SlotRequestFrame&) const = default;
};

struct SlotGrantFrame {
  SlotRange range{};
  uint32_t generation = 0;  // the start generation of every slot in the range
  bool operator==(const SlotGrantFrame&) const = default;
};

struct AbortAck {
  uint64_t transfer = 0;
  bool delivered = false;
  bool operator==(const AbortAck&) const = default;
};

struct DiscardAck {
  uint64_t transfer = 0;
  SlotRef ref{};
  bool complete = false;  // the lane's count was exact: nothing needs to go again
  bool operator==(const DiscardAck&) const = default;
};

// What the target has released since the last frame of this type.
struct ReleasedFrame {
  absl::InlinedVector<uint64_t, 2> arrived{};  // transfers that are complete
  std::vector<SlotRef> freed{};                // with the generation that was used
  std::vector<AbortAck> aborted{};
  std::vector<DiscardAck> discarded{};
  bool empty() const {
    return arrived.empty() && freed.empty() && aborted.empty() && discarded.empty();
  }
  void clear() {
    arrived.clear();
    freed.clear();
    aborted.clear();
    discarded.clear();
  }
  bool operator==(const ReleasedFrame&) const = default;
};

// Totals since the session began. An initiator must not exceed them with kOpen frames that have a
// notification.
struct CreditFrame {
  uint64_t notifications = 0;
  uint64_t bytes = 0;
  bool operator==(const CreditFrame&) const = default;
};

struct QuiesceFrame {
  uint64_t id = 0;
  bool all_regions = false;
  bool revoke = false;  // also begin nothing new on these regions
  std::vector<uint32_t> regions{};
  bool operator==(const QuiesceFrame&) const = default;
};

struct QuietFrame {
  uint64_t id = 0;
  bool operator==(const QuietFrame&) const = default;
};

// Ping and pong have one number, which the pong echoes.
struct PingFrame {
  uint64_t nonce = 0;
  bool operator==(const PingFrame&) const = default;
};

// kFenceRail and kRailFenced: a rail of the connection that the frame is received on.
struct RailFrame {
  uint32_t rail = 0;
  bool operator==(const RailFrame&) const = default;
};

// The number that its KeyFrame gave the connection.
struct LinkGoneFrame {
  uint64_t link = 0;
  bool operator==(const LinkGoneFrame&) const = default;
};

// The KV range that a transfer brought of a request; several workers may write one request.
struct KvPartFrame {
  std::string cache{};
  uint64_t cache_id = 0;  // see KvCacheInfo
  std::string request{};
  uint64_t blocks_hash = 0;  // see KvPart
  KvRange range{};
  bool has_notification = false;
  std::string notification{};
  bool operator==(const KvPartFrame&) const = default;
};

struct FetchEndFrame {
  uint64_t transfer = 0;
  std::string lease{};
  uint32_t readers = 0;  // readers that will fetch under the lease; 0: given up, no answer
  bool operator==(const FetchEndFrame&) const = default;
};

// Sent only if a KV part is refused, and before its transfer is reported as arrived.
struct KvAnswerFrame {
  uint64_t transfer = 0;
  bool good = false;
  std::string why{};  // why not
  bool operator==(const KvAnswerFrame&) const = default;
};

// Begins a fetch under a lease that must hold `contents`; a fetch has the number of its transfer.
struct LeaseReadFrame {
  uint64_t transfer = 0;
  std::string lease{};
  std::string contents{};
  uint64_t blocks_hash = 0;   // of the ids that it reads, see HashLeased
  uint64_t within_nanos = 0;  // the longest time that the fetch takes
  uint64_t wait_nanos = 0;    // how long the answer may wait for the lease to be granted
  bool operator==(const LeaseReadFrame&) const = default;
};

// Answers a fetch twice: whether it may begin, and whether the data read is valid (unless it was
// given up).
struct LeaseAnswerFrame {
  uint64_t transfer = 0;
  KvLeaseRefusal refusal = kHeld;
  std::string why{};  // set if refused

  static constexpr KvLeaseRefusal kHeld{0};  // not refused
  bool operator==(const LeaseAnswerFrame&) const = default;
};

// Asks for staging buffers. A staging buffer is a fixed-size piece of the
// target's staging region, numbered from the region's start (docs/architecture.md, "Staging").
struct StageAskFrame {
  uint32_t count = 0;  // buffers asked for
  bool operator==(const StageAskFrame&) const = default;
};

struct StageLendFrame {
  std::vector<uint32_t> buffers{};
  bool operator==(const StageLendFrame&) const = default;
};

struct StageRecallFrame {
  uint32_t nothing = 0;  // reserved
  bool operator==(const StageRecallFrame&) const = default;
};

struct StageBackFrame {
  std::vector<uint32_t> buffers{};
  bool operator==(const StageBackFrame&) const = default;
};

// A contiguous piece of the target's memory.
struct StageRun {
  uint64_t address = 0;
  uint32_t bytes = 0;
  uint32_t rkey = 0;
  bool operator==(const StageRun&) const = default;
};
inline constexpr size_t kMaxStageRuns = 4096;

// When, and in which direction, the target copies between a buffer and its memory.
enum class StageWhen : uint8_t {
  kGather = 0,    // into the buffer, at once
  kScatter,       // out of the buffer, at once: the bytes are there
  kScatterLater,  // out of the buffer, once the transfer that brings the bytes is complete
};

// Tells the target what to copy between a buffer and its memory. The runs lie in the buffer one
// behind the other. A second frame for a buffer replaces one that still waits for its transfer.
struct StageFrame {
  uint64_t transfer = 0;  // the transfer that moves the bytes of the buffer
  StageWhen when = StageWhen::kGather;
  uint32_t buffer = 0;
  std::vector<StageRun> runs{};
  bool operator==(const StageFrame&) const = default;
};

struct StagedFrame {
  uint64_t transfer = 0;
  bool good = false;  // every byte is in place and visible to what runs there from now on
  std::string why{};  // why not
  bool operator==(const StagedFrame&) const = default;
};

// A frame struct as declared above, in contrast to an encoded frame.
template <typename T>
concept PlainFrame = std::is_class_v<T> && std::is_aggregate_v<T>;

// A complete message: the envelope followed by `body`. `space`: a string whose memory it may use.
std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, std::string_view body,
                          std::string space = {});
// The same with the encoding of `frame` as body, without an intermediate copy.
template <PlainFrame Frame>
std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, const Frame& frame,
                          std::string space = {});

// Whether frames of the type come from the side that initiates what they are about. The others, of
// those with numbers, come from its target.
bool IsFromInitiator(FrameType type);

// Overwrites the ack of an encoded message.
void PatchAck(std::string& message, uint64_t ack);
absl::StatusOr<Envelope> DecodeEnvelope(std::span<const std::byte> message);
// Takes the first frame off a message of one or more. One whose length is wrong is the rest, which
// DecodeEnvelope refuses.
std::span<const std::byte> TakeFrame(std::span<const std::byte>& message);

// The body of a message. Defined, as is Decode below, for every frame above.
template <PlainFrame Frame>
std::string Encode(const Frame& frame);
// Decodes a body; left-over bytes are an error.
template <typename Frame>
absl::StatusOr<Frame> Decode(std::span<const std::byte> body);
// The same, and passes the frame on. What `take` returns is the result.
template <typename Frame, typename Take>
absl::Status DecodeFor(std::span<const std::byte> body, const Take& take) {
  absl::StatusOr<Frame> frame = Decode<Frame>(body);
  return frame.ok() ? take(*frame) : frame.status();
}

// The highest version that both ranges contain. FailedPrecondition names both ranges.
absl::StatusOr<uint16_t> CommonVersion(uint16_t min_a, uint16_t max_a, uint16_t min_b,
                                       uint16_t max_b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_WIRE_FORMAT_H_
