// The layout of every frame, once for both directions: Fields(io, frame) lists the fields in wire
// order, and wire_io.h's Writer and Reader execute it. The order and width of fields must not
// change within a protocol version; tests/unit/golden/ holds the bytes.
#include "src/core/protocol/wire_format.h"

#include <algorithm>
#include <limits>

#include "kvxfer/kv_cache.h"
#include "kvxfer/notification.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/codec.h"

namespace kvxfer {
namespace wire {

// Sizes of list items on the wire; they differ from sizeof, which includes padding.
template <>
constexpr size_t kItemBytes<SlotRef> = 4;
template <>
constexpr size_t kItemBytes<LaneFrame> = 8;
template <>
constexpr size_t kItemBytes<AbortAck> = 9;
template <>
constexpr size_t kItemBytes<DiscardAck> = 13;
template <>
constexpr size_t kItemBytes<StageRun> = 16;
template <>
constexpr size_t kItemBytes<RegionRun> = 8;

template <typename Io>
// Both fields are the same in every version, so that any two agents can find out whether they have
// one in common.
void Versions(Io& io, Ref<Io, uint16_t> min, Ref<Io, uint16_t> max) {
  io.Int("min_version", min);
  io.Int("max_version", max);
  io.Check("max_version", min <= max, "must not be below min_version");
}

// As the immediate that names the slot, which NICs carry in this order.
template <typename Io>
void SlotField(Io& io, const char* field, Ref<Io, SlotRef> ref) {
  uint32_t immediate = EncodeImmediate(ref);
  io.BigEndian(field, immediate);
  if constexpr (Io::kReads) ref = DecodeImmediate(immediate);
}

// Items of lists.
template <typename Io>
void Fields(Io& io, Ref<Io, uint32_t> id) {
  io.Int("item", id);
}
template <typename Io>
void Fields(Io& io, Ref<Io, uint64_t> id) {
  io.Int("item", id);
}
template <typename Io>
void Fields(Io& io, Ref<Io, AuthMethod> method) {
  // A peer may know methods that are newer than this program.
  EnumField(io, "auth", method, 0, std::numeric_limits<uint8_t>::max());  // may be newer than us
}
template <typename Io>
void Fields(Io& io, Ref<Io, SlotRef> ref) {
  SlotField(io, "slot", ref);
}
template <typename Io>
void Fields(Io& io, Ref<Io, LaneFrame> lane) {
  SlotField(io, "slot", lane.ref);
  io.Int("arrivals", lane.arrivals);
  io.Check("arrivals", lane.arrivals >= 1, "must be at least 1");
}
template <typename Io>
void Fields(Io& io, Ref<Io, AbortAck> ack) {
  io.Int("transfer", ack.transfer);
  io.Bool("delivered", ack.delivered);
}
template <typename Io>
void Fields(Io& io, Ref<Io, DiscardAck> ack) {
  io.Int("transfer", ack.transfer);
  SlotField(io, "slot", ack.ref);
  io.Bool("complete", ack.complete);
}
template <typename Io>
void Fields(Io& io, Ref<Io, StageRun> run) {
  io.Int("address", run.address);
  io.Int("bytes", run.bytes);
  io.Int("rkey", run.rkey);
}
template <typename Io>
void Fields(Io& io, Ref<Io, RegionRun> run) {
  io.Int("first", run.first);
  io.Int("last", run.last);
  io.Check("run", run.first <= run.last, "must not end before it begins");
}

// Bodies of frames.
// 0 means a session that is not known yet.
template <typename Io>
void SessionField(Io& io, Ref<Io, uint64_t> session) {
  io.Int("session", session);
  io.Check("session", session != 0, "must not be 0");
}
template <typename Io>
void Fields(Io& io, Ref<Io, HelloFrame> frame) {
  Versions(io, frame.min_version, frame.max_version);
  io.Id("initiator", frame.initiator);
  io.Id("target", frame.target);
  SessionField(io, frame.session);
  io.Int("peer_session", frame.peer_session);
  io.List("auth", frame.auth);
  io.Name("name", frame.name);
}
template <typename Io>
void Fields(Io& io, Ref<Io, HelloAckFrame> frame) {
  io.Int("version", frame.version);
  EnumField(io, "auth", frame.auth, 0, static_cast<uint8_t>(AuthMethod::kNone));
  io.Id("target", frame.target);
  SessionField(io, frame.session);
  io.Int("last_region", frame.last_region);
}
template <typename Io>
void Fields(Io& io, Ref<Io, RefuseFrame> frame) {
  // A peer may have reasons that are newer than this program.
  EnumField(io, "reason", frame.reason, static_cast<uint8_t>(RefuseReason::kVersion),
            std::numeric_limits<uint8_t>::max());
  Versions(io, frame.min_version, frame.max_version);
  io.Id("target", frame.target);
  io.Text("text", frame.text, 0, std::numeric_limits<uint32_t>::max());
}
// No transfer is 0, which means every transfer in a FenceScope.
template <typename Io, typename Id>
void TransferField(Io& io, Id& transfer) {
  io.Int("transfer", transfer);
  io.Check("transfer", transfer != 0, "must not be 0");
}
template <typename Io>
void Fields(Io& io, Ref<Io, OpenFrame> frame) {
  TransferField(io, frame.transfer);
  io.Int("order", frame.order);
  EnumField(io, "notice", frame.notice, 0, static_cast<uint8_t>(Notice::kKvPart));
  io.List("lanes", frame.lanes);
  io.Text("notification", frame.notification, 0, kMaxNotificationBytes);
  // A payload without notice would use memory and no credit.
  io.Check("notification", frame.notice != Notice::kNone || frame.notification.empty(),
           "must be empty without notice");
}
template <typename Io>
void Fields(Io& io, Ref<Io, AmendFrame> frame) {
  TransferField(io, frame.transfer);
  io.List("lanes", frame.lanes);
}
template <typename Io>
void Fields(Io& io, Ref<Io, AbortFrame> frame) {
  TransferField(io, frame.transfer);
  io.Int("order", frame.order);
  io.Bool("opened", frame.opened);
  io.List("slots", frame.slots);
}
template <typename Io>
void Fields(Io& io, Ref<Io, DiscardFrame> frame) {
  TransferField(io, frame.transfer);
  io.List("slots", frame.slots);
}
template <typename Io>
void Fields(Io& io, Ref<Io, SlotRequestFrame> frame) {
  io.Int("count", frame.count);
}
template <typename Io>
void Fields(Io& io, Ref<Io, SlotGrantFrame> frame) {
  io.Int("first", frame.range.first);
  io.Int("count", frame.range.count);
  io.Int("generation", frame.generation);
  io.Check("range", uint64_t{frame.range.first} + frame.range.count <= (1u << kSlotBits),
           "beyond the last slot, 1048575");
  // Slots and generations must fit into an immediate.
  io.Check("generation", frame.generation <= kGenerationMask, "must be at most 4095");
}
template <typename Io>
void Fields(Io& io, Ref<Io, ReleasedFrame> frame) {
  io.List("arrived", frame.arrived);
  io.List("freed", frame.freed);
  io.List("aborted", frame.aborted);
  io.List("discarded", frame.discarded);
}
template <typename Io>
void Fields(Io& io, Ref<Io, CreditFrame> frame) {
  io.Int("notifications", frame.notifications);
  io.Int("bytes", frame.bytes);
}
template <typename Io>
void Fields(Io& io, Ref<Io, QuiesceFrame> frame) {
  io.Int("id", frame.id);
  io.Bool("all_regions", frame.all_regions);
  io.Bool("revoke", frame.revoke);
  io.List("regions", frame.regions);
}
template <typename Io>
void Fields(Io& io, Ref<Io, QuietFrame> frame) {
  io.Int("id", frame.id);
}
template <typename Io>
void Fields(Io& io, Ref<Io, PingFrame> frame) {
  io.Int("nonce", frame.nonce);
}
template <typename Io>
void Fields(Io& io, Ref<Io, RailFrame> frame) {
  io.Int("rail", frame.rail);
}
template <typename Io>
void Fields(Io& io, Ref<Io, LinkGoneFrame> frame) {
  io.Int("link", frame.link);
}
template <typename Io>
void Fields(Io& io, Ref<Io, KvRange> range) {
  io.Int("first_head", range.heads.first);
  io.Int("heads", range.heads.count);
  io.Int("first_layer", range.first_layer);
  io.Int("layers", range.layers);
}
template <typename Io>
void Fields(Io& io, Ref<Io, KvPartFrame> frame) {
  io.Name("cache", frame.cache);
  io.Int("cache_id", frame.cache_id);
  io.Name("request", frame.request);
  io.Int("blocks_hash", frame.blocks_hash);
  Fields(io, frame.range);
  io.Bool("has_notification", frame.has_notification);
  io.Text("notification", frame.notification, 0, kMaxKvNotificationBytes);
  io.Check("notification", frame.has_notification || frame.notification.empty(),
           "must be empty without has_notification");
}
template <typename Io>
void Fields(Io& io, Ref<Io, FetchEndFrame> frame) {
  io.Int("transfer", frame.transfer);
  io.Name("lease", frame.lease);
  io.Int("readers", frame.readers);
}
template <typename Io>
void Fields(Io& io, Ref<Io, KvAnswerFrame> frame) {
  io.Int("transfer", frame.transfer);
  io.Bool("good", frame.good);
  io.Text("why", frame.why, 0, kMaxNotificationBytes);
}
template <typename Io>
void Fields(Io& io, Ref<Io, LeaseReadFrame> frame) {
  io.Int("transfer", frame.transfer);
  io.Name("lease", frame.lease);
  io.Text("contents", frame.contents, 0, kMaxNameBytes);
  io.Int("blocks_hash", frame.blocks_hash);
  io.Int("within_nanos", frame.within_nanos);
  io.Int("wait_nanos", frame.wait_nanos);
}
template <typename Io>
void Fields(Io& io, Ref<Io, LeaseAnswerFrame> frame) {
  io.Int("transfer", frame.transfer);
  EnumField(io, "refusal", frame.refusal, 0, static_cast<uint8_t>(KvLeaseRefusal::kBusy));
  io.Text("why", frame.why, 0, kMaxNotificationBytes);
}
template <typename Io>
void Fields(Io& io, Ref<Io, StageAskFrame> frame) {
  io.Int("count", frame.count);
}
template <typename Io>
void Fields(Io& io, Ref<Io, StageLendFrame> frame) {
  io.List("buffers", frame.buffers);
}
template <typename Io>
void Fields(Io& io, Ref<Io, StageRecallFrame> frame) {
  io.Int("nothing", frame.nothing);
  io.Check("nothing", frame.nothing == 0, "must be 0");
}
template <typename Io>
void Fields(Io& io, Ref<Io, StageBackFrame> frame) {
  io.List("buffers", frame.buffers);
}
template <typename Io>
void Fields(Io& io, Ref<Io, StageFrame> frame) {
  io.Int("transfer", frame.transfer);
  EnumField(io, "when", frame.when, 0, static_cast<uint8_t>(StageWhen::kScatterLater));
  io.Int("buffer", frame.buffer);
  io.List("runs", frame.runs);
  // Bounds the work that one frame asks of the target.
  io.Check("runs", !frame.runs.empty() && frame.runs.size() <= kMaxStageRuns, "must be 1 to 4096");
}
template <typename Io>
void Fields(Io& io, Ref<Io, StagedFrame> frame) {
  io.Int("transfer", frame.transfer);
  io.Bool("good", frame.good);
  io.Text("why", frame.why, 0, kMaxNotificationBytes);
}

// Whether the runs ascend, do not touch each other, and lie within the page.
bool Ascend(const RegionsFrame& page) {
  // 64 bits: the last region id has no successor in 32.
  uint64_t next = page.first;
  for (const RegionRun& run : page.live) {
    if (run.first < next || run.last > page.last) return false;
    next = uint64_t{run.last} + 2;
  }
  return true;
}
template <typename Io>
void Fields(Io& io, Ref<Io, RegionsFrame> frame) {
  io.Id("target", frame.target);
  io.Int("first", frame.first);
  io.Int("last", frame.last);
  io.Check("first", frame.first >= 1 && frame.first <= frame.last, "must be 1 to last");
  io.List("live", frame.live);
  io.Check("live", frame.live.size() <= kMaxRegionRuns, "must be at most 16000 runs");
  io.Check("live", Ascend(frame), "must ascend with gaps, within first to last");
}

template <typename Io>
void Fields(Io& io, Ref<Io, KeyFrame> frame) {
  io.Int("link", frame.link);
  io.Bytes("key", frame.key);
  io.Bytes("nonce", frame.nonce);
  io.Text("signature", frame.signature, 0, Signature{}.size());
  io.Check("signature", frame.signature.empty() || frame.signature.size() == Signature{}.size(),
           "must have 0 or 64 bytes");
}
template <typename Io>
void Fields(Io& io, Ref<Io, ProofFrame> frame) {
  io.Bytes("signature", frame.signature);
}

}  // namespace wire

namespace {

using wire::LoadLittle;
using wire::Reader;
using wire::StoreLittle;
using wire::Writer;

// Where the ack lies in the envelope, for PatchAck.
constexpr size_t kAckOffset = 16;

// All frames, with their names in error messages.
#define KVXFER_FRAMES(X)              \
  X(HelloFrame, "hello")              \
  X(HelloAckFrame, "hello-ack")       \
  X(RefuseFrame, "refuse")            \
  X(OpenFrame, "open")                \
  X(AmendFrame, "amend")              \
  X(AbortFrame, "abort")              \
  X(DiscardFrame, "discard")          \
  X(SlotRequestFrame, "slot-request") \
  X(SlotGrantFrame, "slot-grant")     \
  X(ReleasedFrame, "released")        \
  X(CreditFrame, "credit")            \
  X(QuiesceFrame, "quiesce")          \
  X(QuietFrame, "quiet")              \
  X(PingFrame, "ping")                \
  X(RailFrame, "rail")                \
  X(KvPartFrame, "kv-part")           \
  X(FetchEndFrame, "fetch-end")       \
  X(KvAnswerFrame, "kv-answer")       \
  X(StageAskFrame, "stage-ask")       \
  X(StageLendFrame, "stage-lend")     \
  X(StageRecallFrame, "stage-recall") \
  X(StageBackFrame, "stage-back")     \
  X(StageFrame, "stage")              \
  X(StagedFrame, "staged")            \
  X(RegionsFrame, "regions")          \
  X(LeaseReadFrame, "lease-read")     \
  X(LeaseAnswerFrame, "lease-answer") \
  X(KeyFrame, "key")                  \
  X(ProofFrame, "proof")              \
  X(LinkGoneFrame, "link-gone")

template <typename Frame>
constexpr const char* kFrameName = "";
#define KVXFER_FRAME_NAME(Frame, name) \
  template <>                          \
  constexpr const char* kFrameName<Frame> = name;
KVXFER_FRAMES(KVXFER_FRAME_NAME)
#undef KVXFER_FRAME_NAME

// Most bodies are smaller, so that encoding one allocates once.
constexpr size_t kUsualBodyBytes = 96;

void MakeSpaceForEnvelope(std::string& message, size_t body_bytes) {
  message.reserve(kEnvelopeBytes + body_bytes);
  message.assign(kEnvelopeBytes, 0);
}

// Writes the envelope in front of the body that `message` already contains.
void WriteEnvelope(std::string& message, FrameType type, uint64_t sequence, uint64_t ack) {
  message[0] = static_cast<char>(type);
  StoreLittle(message.data() + 4, static_cast<uint32_t>(message.size() - kEnvelopeBytes));
  StoreLittle(message.data() + 8, sequence);
  StoreLittle(message.data() + kAckOffset, ack);
}

}  // namespace

std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, std::string_view body,
                          std::string space) {
  MakeSpaceForEnvelope(space, body.size());
  space.append(body);
  WriteEnvelope(space, type, sequence, ack);
  return space;
}

template <PlainFrame Frame>
std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, const Frame& frame,
                          std::string space) {
  MakeSpaceForEnvelope(space, kUsualBodyBytes);
  Writer writer(std::move(space));
  Fields(writer, frame);
  std::string message = writer.Take();
  WriteEnvelope(message, type, sequence, ack);
  return message;
}

bool IsFromInitiator(FrameType type) {
  switch (type) {
    case FrameType::kOpen:
    case FrameType::kAmend:
    case FrameType::kAbort:
    case FrameType::kDiscard:
    case FrameType::kSlotRequest:
    case FrameType::kQuiet:
    case FrameType::kLeaseRead:
    case FrameType::kFetchEnd:
    case FrameType::kStageAsk:
    case FrameType::kStageBack:
    case FrameType::kStage:
    case FrameType::kLinkGone:
      return true;
    default:
      return false;
  }
}

void PatchAck(std::string& message, uint64_t ack) {
  if (message.size() >= kEnvelopeBytes) StoreLittle(message.data() + kAckOffset, ack);
}

std::span<const std::byte> TakeFrame(std::span<const std::byte>& message) {
  size_t bytes = message.size();
  if (bytes >= kEnvelopeBytes) {
    bytes = std::min(bytes, kEnvelopeBytes + size_t{LoadLittle<uint32_t>(&message[4])});
  }
  const std::span<const std::byte> frame = message.first(bytes);
  message = message.subspan(bytes);
  return frame;
}

absl::StatusOr<Envelope> DecodeEnvelope(std::span<const std::byte> message) {
  if (message.size() < kEnvelopeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("damaged envelope: ", message.size(),
                                                   " bytes, needs at least ", kEnvelopeBytes));
  }
  const auto type = static_cast<uint8_t>(message[0]);
  if (type < static_cast<uint8_t>(FrameType::kHello) ||
      type > static_cast<uint8_t>(FrameType::kLast) ||
      type == static_cast<uint8_t>(FrameType::kRetired) ||
      type == static_cast<uint8_t>(FrameType::kNotUsed)) {
    return absl::InvalidArgumentError(
        absl::StrCat("damaged envelope: type: unknown frame type ", type));
  }
  // Reserved fields must be 0, so that a later version can give them a meaning.
  if (message[1] != std::byte{0} || LoadLittle<uint16_t>(&message[2]) != 0) {
    return absl::InvalidArgumentError("damaged envelope: flags: must be 0");
  }
  const auto body_bytes = LoadLittle<uint32_t>(&message[4]);
  if (body_bytes != message.size() - kEnvelopeBytes) {
    return absl::InvalidArgumentError(absl::StrCat("damaged envelope: body bytes: says ",
                                                   body_bytes, ", has ",
                                                   message.size() - kEnvelopeBytes));
  }
  return Envelope{.type = static_cast<FrameType>(type),
                  .sequence = LoadLittle<uint64_t>(&message[8]),
                  .ack = LoadLittle<uint64_t>(&message[kAckOffset]),
                  .body = message.subspan(kEnvelopeBytes)};
}

template <PlainFrame Frame>
std::string Encode(const Frame& frame) {
  Writer writer;
  Fields(writer, frame);
  return writer.Take();
}

template <typename Frame>
absl::StatusOr<Frame> Decode(std::span<const std::byte> body) {
  Reader reader(body, kFrameName<Frame>);
  Frame frame;
  Fields(reader, frame);
  if (absl::Status status = reader.Finish(); !status.ok()) return status;
  return frame;
}

// Instantiates the codec of every frame here, so that other files do not include the layouts.
#define KVXFER_FRAME_CODEC(Frame, name)                                               \
  template std::string Encode(const Frame& frame);                                    \
  template absl::StatusOr<Frame> Decode(std::span<const std::byte> body);             \
  template std::string EncodeMessage(FrameType type, uint64_t sequence, uint64_t ack, \
                                     const Frame& frame, std::string space);
KVXFER_FRAMES(KVXFER_FRAME_CODEC)
#undef KVXFER_FRAME_CODEC
#undef KVXFER_FRAMES

absl::StatusOr<uint16_t> CommonVersion(uint16_t min_a, uint16_t max_a, uint16_t min_b,
                                       uint16_t max_b) {
  const uint16_t highest = std::min(max_a, max_b);
  if (highest < std::max(min_a, min_b)) {
    return absl::FailedPreconditionError(
        absl::StrCat("no common protocol version: one side speaks ", min_a, " to ", max_a,
                     ", the other ", min_b, " to ", max_b, "; update the older one"));
  }
  return highest;
}

}  // namespace kvxfer
