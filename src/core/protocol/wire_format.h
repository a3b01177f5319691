// Frames of the data plane's control channel, versions 1 to 6: encode and decode, nothing else.
//
// All integers little-endian, except immediates, which travel big-endian as NICs carry them. Every
// message of a backend is one envelope:
//   u8 type | u8 flags (0) | u16 reserved (0) | u32 body bytes | u64 sequence | u64 ack | body
// `sequence` is 0 for frames outside the numbered channel (hello, ping, pong, ack). `ack` is the
// highest sequence received in order from the other side. docs/wire-format.md has the bodies.
// Decoding never trusts a length; a damaged frame is an InvalidArgument that names the field.

#ifndef KVXFER_CORE_PROTOCOL_WIRE_FORMAT_H_
#define KVXFER_CORE_PROTOCOL_WIRE_FORMAT_H_

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

namespace kvxfer {

inline constexpr uint16_t kMinProtocolVersion = 1;
inline constexpr uint16_t kMaxProtocolVersion = 6;
inline constexpr uint16_t kCarryVersion = 2;  // the first that knows kCarry
inline constexpr uint16_t kRailVersion = 3;   // the first whose rails may fail one by one
inline constexpr uint16_t kKvVersion = 4;     // the first that knows KV caches
inline constexpr uint16_t kStageVersion = 5;  // the first that lends staging memory
inline constexpr uint16_t kPageVersion = 6;   // the first that lists live regions in pages
inline constexpr uint16_t kLeaseVersion = 6;  // the first that answers reads under leases by a code

// Immediate: slot (20 bits, high) | generation (12 bits, low).
inline constexpr uint32_t kSlotBits = 20;
inline constexpr uint32_t kGenerationBits = 12;
inline constexpr uint32_t kGenerationMask = (1u << kGenerationBits) - 1;

// What one side may make the other keep; beyond these it breaks the protocol.
inline constexpr size_t kMaxSessionTransfers = 16'384;  // begun and without the target's last word
inline constexpr size_t kMaxQuestions = 1024;           // Quiesce calls without their answer
// Questions for deregistered regions without their answer; further regions are asked for together
// once one is answered. Before version 6: one for each region of kMaxListedRegions.
inline constexpr size_t kMaxRevocations = 1024;
// Regions of one agent. Its metadata are of them too, and a peer remembers which are gone.
inline constexpr size_t kMaxRegions = 262'144;
// That one message lists by their ids: QUIESCE, and HELLO_ACK before version 6. 128 KiB at least.
inline constexpr size_t kMaxListedRegions = 30'000;
// That one page lists.
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
  kOpen,         // initiator → target, numbered, like all below up to kReleased
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
  kAck,          // unnumbered; only the envelope's ack
  kCarry,        // both, unnumbered: two messages in one, see CarriedMessages
  kFenceRail,    // initiator → target, unnumbered: over the connection whose rail failed
  kRailFenced,   // target → initiator, unnumbered: answers kFenceRail over the same connection
  kFetchBegin,   // initiator → target, numbered, like the next two: versions 4 and 5's kLeaseRead
  kFetchEnd,     // initiator → target: the last byte is read, or the fetch was given up
  kVerdict,      // target → initiator: that a KV part is refused; versions 4 and 5: on a fetch
  kStageAsk,     // initiator → target, numbered, like all below: wishes for staging slots
  kStageLend,    // target → initiator: slots that it may use
  kStageRecall,  // target → initiator: others wait for slots
  kStageBack,    // initiator → target: slots that it will not use any more
  kStage,        // initiator → target: what goes between a slot and the target's memory
  kStaged,       // target → initiator: answers kStage
  kRegions,      // target → initiator, unnumbered: a page of what kHelloAck would list
  kLeaseRead,    // initiator → target, numbered, like the next: asks to read under a lease
  kLeaseAnswer,  // target → initiator: answers kLeaseRead and kFetchEnd
};

inline constexpr size_t kEnvelopeBytes = 24;

struct Envelope {
  FrameType type = FrameType::kAck;
  uint64_t sequence = 0;
  uint64_t ack = 0;
  std::span<const std::byte> body{};  // into the decoded buffer
};

enum class AuthMethod : uint8_t { kNone = 0 };

struct HelloFrame {
  uint16_t min_version = kMinProtocolVersion;
  uint16_t max_version = kMaxProtocolVersion;
  Incarnation initiator{};
  Incarnation target{};  // whom the initiator means; another one refuses
  uint64_t session = 0;  // random; one order of transfers and one numbered channel
  // Lowest sequence that the initiator can still replay; 0: the session is new, no target has
  // answered a hello of it.
  uint64_t oldest_kept = 0;
  std::vector<AuthMethod> auth{AuthMethod::kNone};
  std::string name{};  // the initiator's
  bool operator==(const HelloFrame&) const = default;
};

struct HelloAckFrame {
  uint16_t version = kMaxProtocolVersion;
  AuthMethod auth = AuthMethod::kNone;
  Incarnation target{};
  // The target's live regions: an id not above last_region and not in the list is gone. From
  // version 6 on the list is empty, and pages tell of 1 to last_region.
  uint32_t last_region = 0;
  std::vector<uint32_t> live_regions{};
  bool operator==(const HelloAckFrame&) const = default;
};

struct RegionRun {
  uint32_t first = 0;
  uint32_t last = 0;
  bool operator==(const RegionRun&) const = default;
};

// A page about the target's regions `first` to `last`: those in a run live, the others are gone.
// Pages may overtake each other and the hello-ack; no two of a connection are about the same
// region.
struct RegionsFrame {
  Incarnation target{};
  uint32_t first = 1;
  uint32_t last = 1;
  std::vector<RegionRun> live{};  // ascending
  bool operator==(const RegionsFrame&) const = default;
};

enum class RefuseReason : uint8_t {
  kVersion = 1,  // no common version
  kIncarnation,  // the target is another incarnation than meant
  kSession,      // the target no longer knows the session; start a new one
  kAuth,         // no common authentication method
  kClosing,      // the target shuts down
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
  uint32_t arrivals = 0;  // how many immediates the lane sends, >= 1
  bool operator==(const LaneFrame&) const = default;
};

// What `notification` of an OpenFrame is.
enum class Notice : uint8_t {
  kNone = 0,
  kNotification,  // for the application
  kKvPart,        // a KvPartFrame
};

struct OpenFrame {
  uint64_t transfer = 0;
  uint64_t order = 0;  // number in the session's order, from 1; 0: in no order
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
  std::vector<SlotRef> slots{};  // lanes that are not known to be free
  bool operator==(const AbortFrame&) const = default;
};

struct DiscardFrame {
  uint64_t transfer = 0;
  std::vector<SlotRef> slots{};
  bool operator==(const DiscardFrame&) const = default;
};

struct SlotRequestFrame {
  uint32_t count = 0;  // slots wished for
  bool operator==(const SlotRequestFrame&) const = default;
};

struct SlotGrantFrame {
  SlotRange range{};
  uint32_t generation = 0;  // at which every slot of the range starts
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
  bool complete = false;  // the lane's count was exact: nothing to send again
  bool operator==(const DiscardAck&) const = default;
};

// What the target has let go since the last of these.
struct ReleasedFrame {
  absl::InlinedVector<uint64_t, 2> arrived{};  // transfers that are whole
  std::vector<SlotRef> freed{};                // with the generation that was used
  std::vector<AbortAck> aborted{};
  std::vector<DiscardAck> discarded{};
  bool empty() const {
    return arrived.empty() && freed.empty() && aborted.empty() && discarded.empty();
  }
  bool operator==(const ReleasedFrame&) const = default;
};

// Totals since the session began; an initiator sends no kOpen with a notification beyond them.
struct CreditFrame {
  uint64_t notifications = 0;
  uint64_t bytes = 0;
  bool operator==(const CreditFrame&) const = default;
};

struct QuiesceFrame {
  uint64_t id = 0;
  bool all_regions = false;
  bool revoke = false;  // and begin nothing new on these regions
  std::vector<uint32_t> regions{};
  bool operator==(const QuiesceFrame&) const = default;
};

struct QuietFrame {
  uint64_t id = 0;
  bool operator==(const QuietFrame&) const = default;
};

// Ping and pong carry one number, echoed.
struct PingFrame {
  uint64_t nonce = 0;
  bool operator==(const PingFrame&) const = default;
};

// Of the connection over which it comes; kFenceRail and kRailFenced.
struct RailFrame {
  uint32_t rail = 0;
  bool operator==(const RailFrame&) const = default;
};

// What a transfer has brought of a request, written into a KV cache by several.
struct KvPartFrame {
  std::string cache{};
  uint64_t cache_id = 0;  // see KvCacheInfo
  std::string request{};
  uint64_t blocks_hash = 0;  // see KvPart
  uint32_t first_head = 0;   // of the model, as layers
  uint32_t heads = 0;
  uint32_t first_layer = 0;
  uint32_t layers = 0;
  bool has_notification = false;
  std::string notification{};
  bool operator==(const KvPartFrame&) const = default;
};

// A fetch has the number of its transfer.
struct FetchBeginFrame {
  uint64_t transfer = 0;
  std::string lease{};
  uint64_t blocks_hash = 0;   // of the ids that it reads, see KvLeases
  uint64_t within_nanos = 0;  // it takes no longer
  bool operator==(const FetchBeginFrame&) const = default;
};

struct FetchEndFrame {
  uint64_t transfer = 0;
  std::string lease{};
  uint32_t readers = 0;  // how many are to fetch under the lease; 0: given up, do not answer
  bool operator==(const FetchEndFrame&) const = default;
};

// Of a fetch twice, whether it may begin and whether what was read is good, unless it was given up;
// of a KV part that is refused, before the arrival of its transfer is told.
struct VerdictFrame {
  uint64_t transfer = 0;
  bool good = false;
  std::string why{};  // not
  bool operator==(const VerdictFrame&) const = default;
};

// Begins a fetch, as FetchBeginFrame does, of a lease that must hold `contents`.
struct LeaseReadFrame {
  uint64_t transfer = 0;
  std::string lease{};
  std::string contents{};
  uint64_t blocks_hash = 0;   // of the ids that it reads, see KvLeases
  uint64_t within_nanos = 0;  // it takes no longer
  uint64_t wait_nanos = 0;    // the answer may wait for the grant, for so long
  bool operator==(const LeaseReadFrame&) const = default;
};

// Of a fetch twice, as VerdictFrame.
struct LeaseAnswerFrame {
  uint64_t transfer = 0;
  KvLeaseRefusal refusal = kHeld;
  std::string why{};  // refused

  static constexpr KvLeaseRefusal kHeld{0};  // none
  bool operator==(const LeaseAnswerFrame&) const = default;
};

// A slot of staging memory is so many bytes of a region of the target that is made for it, by
// number from its beginning (docs/architecture.md, "Staging").
struct StageAskFrame {
  uint32_t count = 0;  // slots wished for
  bool operator==(const StageAskFrame&) const = default;
};

struct StageLendFrame {
  std::vector<uint32_t> slots{};
  bool operator==(const StageLendFrame&) const = default;
};

struct StageRecallFrame {
  uint32_t nothing = 0;  // reserved
  bool operator==(const StageRecallFrame&) const = default;
};

struct StageBackFrame {
  std::vector<uint32_t> slots{};
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

// When, and in which direction, the target copies between a slot and its memory.
enum class StageWhen : uint8_t {
  kGather = 0,    // into the slot, at once
  kScatter,       // out of it, at once: the bytes are there
  kScatterLater,  // out of it, once the transfer that brings the bytes is whole
};

// The runs lie in the slot one behind the other. A second one for a slot takes the place of one
// that waits for its transfer.
struct StageFrame {
  uint64_t transfer = 0;  // that moves the bytes of the slot
  StageWhen when = StageWhen::kGather;
  uint32_t slot = 0;
  std::vector<StageRun> runs{};
  bool operator==(const StageFrame&) const = default;
};

struct StagedFrame {
  uint64_t transfer = 0;
  bool good = false;  // every byte is there, visible to whatever runs there from now on
  std::string why{};  // not
  bool operator==(const StagedFrame&) const = default;
};

// A frame as declared above, as opposed to the bytes of one.
template <typename T>
concept PlainFrame = std::is_class_v<T> && std::is_aggregate_v<T>;

// A whole message: the envelope with `body` behind it.
std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, std::string_view body);
// The same with the body that Encode makes of a frame, without a copy of it in between.
template <PlainFrame Frame>
std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, const Frame& frame);
// Of two sessions between the same two agents, one each way: `own` belongs to the session of the
// connection, `carried` to the other one, `session`. Both are whole messages with numbered frames.
struct CarriedMessages {
  uint64_t session = 0;
  std::span<const std::byte> carried{};
  std::span<const std::byte> own{};
};
// The message of type kCarry.
std::string EncodeCarry(uint64_t ack, uint64_t session, std::string_view carried,
                        std::string_view own);
// The spans are into `body`; that what they hold is sound is not known yet.
absl::StatusOr<CarriedMessages> DecodeCarry(std::span<const std::byte> body);

// Overwrites the ack of an encoded message.
void PatchAck(std::string& message, uint64_t ack);
absl::StatusOr<Envelope> DecodeEnvelope(std::span<const std::byte> message);
// Refuses those without a number.
absl::StatusOr<Envelope> DecodeNumbered(std::span<const std::byte> message);

// The body of a message. As Decode below, there for every frame above.
template <PlainFrame Frame>
std::string Encode(const Frame& frame);
// Decodes a body; bytes left over are an error.
template <typename Frame>
absl::StatusOr<Frame> Decode(std::span<const std::byte> body);

// The highest version both ranges hold; FailedPrecondition names both ranges.
absl::StatusOr<uint16_t> CommonVersion(uint16_t min_a, uint16_t max_a, uint16_t min_b,
                                       uint16_t max_b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_WIRE_FORMAT_H_
