// What must hold for any bytes that come in as a message or a frame body. Used by the fuzz target
// and, on a small corpus, by the unit tests.
#ifndef KVXFER_TESTS_FUZZ_FRAME_CHECKS_H_
#define KVXFER_TESTS_FUZZ_FRAME_CHECKS_H_

#include <cstring>
#include <span>
#include <string>

#include "src/core/protocol/wire_format.h"

namespace kvxfer::testing {

inline std::span<const std::byte> AsBytes(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

inline bool SameBytes(const std::string& a, std::span<const std::byte> b) {
  return a.size() == b.size() && (b.empty() || std::memcmp(a.data(), b.data(), b.size()) == 0);
}

// A body is refused by name, or is exactly the encoding of what it decodes to.
template <typename Frame>
bool BodyHolds(std::span<const std::byte> body) {
  const absl::StatusOr<Frame> frame = Decode<Frame>(body);
  if (!frame.ok()) {
    return frame.status().code() == absl::StatusCode::kInvalidArgument &&
           !frame.status().message().empty();
  }
  return SameBytes(Encode(*frame), body);
}

inline bool BodyHolds(FrameType type, std::span<const std::byte> body) {
  switch (type) {
    case FrameType::kHello:
      return BodyHolds<HelloFrame>(body);
    case FrameType::kHelloAck:
      return BodyHolds<HelloAckFrame>(body);
    case FrameType::kRefuse:
      return BodyHolds<RefuseFrame>(body);
    case FrameType::kOpen:
      return BodyHolds<OpenFrame>(body);
    case FrameType::kAmend:
      return BodyHolds<AmendFrame>(body);
    case FrameType::kAbort:
      return BodyHolds<AbortFrame>(body);
    case FrameType::kDiscard:
      return BodyHolds<DiscardFrame>(body);
    case FrameType::kSlotRequest:
      return BodyHolds<SlotRequestFrame>(body);
    case FrameType::kQuiet:
      return BodyHolds<QuietFrame>(body);
    case FrameType::kReleased:
      return BodyHolds<ReleasedFrame>(body);
    case FrameType::kSlotGrant:
      return BodyHolds<SlotGrantFrame>(body);
    case FrameType::kCredit:
      return BodyHolds<CreditFrame>(body);
    case FrameType::kQuiesce:
      return BodyHolds<QuiesceFrame>(body);
    case FrameType::kPing:
    case FrameType::kPong:
      return BodyHolds<PingFrame>(body);
    case FrameType::kAck:
      return true;
    case FrameType::kFenceRail:
    case FrameType::kRailFenced:
      return BodyHolds<RailFrame>(body);
    case FrameType::kNotUsed:
    case FrameType::kRetired:
      return true;
    case FrameType::kFetchEnd:
      return BodyHolds<FetchEndFrame>(body);
    case FrameType::kKvAnswer:
      return BodyHolds<KvAnswerFrame>(body);
    case FrameType::kStageAsk:
      return BodyHolds<StageAskFrame>(body);
    case FrameType::kStageLend:
      return BodyHolds<StageLendFrame>(body);
    case FrameType::kStageRecall:
      return BodyHolds<StageRecallFrame>(body);
    case FrameType::kStageBack:
      return BodyHolds<StageBackFrame>(body);
    case FrameType::kStage:
      return BodyHolds<StageFrame>(body);
    case FrameType::kStaged:
      return BodyHolds<StagedFrame>(body);
    case FrameType::kRegions:
      return BodyHolds<RegionsFrame>(body);
    case FrameType::kLeaseRead:
      return BodyHolds<LeaseReadFrame>(body);
    case FrameType::kLeaseAnswer:
      return BodyHolds<LeaseAnswerFrame>(body);
    case FrameType::kKey:
      return BodyHolds<KeyFrame>(body);
    case FrameType::kProof:
      return BodyHolds<ProofFrame>(body);
    case FrameType::kLinkGone:
      return BodyHolds<LinkGoneFrame>(body);
  }
  return false;
}

inline bool MessageHolds(std::span<const std::byte> message) {
  const absl::StatusOr<Envelope> envelope = DecodeEnvelope(message);
  if (!envelope.ok()) return envelope.status().code() == absl::StatusCode::kInvalidArgument;
  const std::string body(reinterpret_cast<const char*>(envelope->body.data()),
                         envelope->body.size());
  return SameBytes(EncodeMessage(envelope->type, envelope->sequence, envelope->ack, body),
                   message) &&
         BodyHolds(envelope->type, envelope->body);
}

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_FUZZ_FRAME_CHECKS_H_
