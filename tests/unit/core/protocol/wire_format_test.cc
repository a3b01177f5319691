#include "src/core/protocol/wire_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <random>
#include <string>
#include <vector>

#include "kvxfer/kv_cache.h"
#include "kvxfer/notification.h"
#include "src/core/base/text.h"
#include "tests/fuzz/frame_checks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/protocol/golden/frames_v1.h"
#include "tests/unit/core/protocol/golden/frames_v3.h"
#include "tests/unit/core/protocol/golden/frames_v4.h"
#include "tests/unit/core/protocol/golden/frames_v5.h"
#include "tests/unit/core/protocol/golden/frames_v6.h"
#include "tests/unit/core/protocol/golden/frames_v7.h"

namespace kvxfer {
namespace {

using testing::AsBytes;
using testing::Fails;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Incarnation IncarnationFrom(uint8_t first) {
  Incarnation incarnation;
  for (size_t i = 0; i < 16; ++i) incarnation.bytes[i] = static_cast<uint8_t>(first + i);
  return incarnation;
}

std::string Hex(const std::string& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text.push_back(kDigits[static_cast<uint8_t>(c) >> 4]);
    text.push_back(kDigits[static_cast<uint8_t>(c) & 15]);
  }
  return text;
}

// The golden text without the spaces that part its fields.
std::string Golden(std::string text) {
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  return text;
}

// One frame of each kind, every field different from its default.
const HelloFrame kHello{.min_version = 1,
                        .max_version = 2,
                        .initiator = IncarnationFrom(0x10),
                        .target = IncarnationFrom(0x40),
                        .session = 0x1122334455667788,
                        .peer_session = 9,
                        .auth = {AuthMethod::kNone, AuthMethod{7}},
                        .name = "prefill-0"};
const HelloAckFrame kHelloAck{.version = 7,
                              .auth = AuthMethod::kNone,
                              .target = IncarnationFrom(0x40),
                              .session = 0x8877665544332211,
                              .last_region = 12};
const RefuseFrame kRefuse{.reason = RefuseReason::kSession,
                          .min_version = 1,
                          .max_version = 3,
                          .target = IncarnationFrom(0x40),
                          .text = "gone"};
const OpenFrame kOpen{.transfer = 0x0102030405060708,
                      .order = 5,
                      .notice = Notice::kNotification,
                      .lanes = {{.ref = {.slot = 0xabcde, .generation = 0xf01}, .arrivals = 1},
                                {.ref = {.slot = 1, .generation = 2}, .arrivals = 300}},
                      .notification = "request 7"};
const AmendFrame kAmend{.transfer = 6,
                        .lanes = {{.ref = {.slot = 64, .generation = 4095}, .arrivals = 2}}};
const AbortFrame kAbort{.transfer = 7,
                        .order = 8,
                        .opened = true,
                        .slots = {{.slot = 5, .generation = 6}, {.slot = 7, .generation = 8}}};
const DiscardFrame kDiscard{.transfer = 9, .slots = {{.slot = 1048575, .generation = 0}}};
const SlotRequestFrame kSlotRequest{.count = 128};
const SlotGrantFrame kSlotGrant{.range = {.first = 192, .count = 64}, .generation = 4095};
const ReleasedFrame kReleased{
    .arrived = {1, 0xffffffffffffffff},
    .freed = {{.slot = 2, .generation = 3}},
    .aborted = {{.transfer = 4, .delivered = true}},
    .discarded = {{.transfer = 5, .ref = {.slot = 6, .generation = 7}, .complete = true}}};
const CreditFrame kCredit{.notifications = 4096, .bytes = 16777216};
const QuiesceFrame kQuiesce{.id = 10, .all_regions = true, .revoke = true, .regions = {1, 2, 3}};
const QuietFrame kQuiet{.id = 11};
const PingFrame kPing{.nonce = 0xfedcba9876543210};
const RailFrame kRail{.rail = 5};
const KvPartFrame kKvPart{.cache = "kv",
                          .cache_id = 0x1112131415161718,
                          .request = "r:7",
                          .blocks_hash = 0x0102030405060708,
                          .range = {.heads = {2, 4}, .first_layer = 16, .layers = 8},
                          .has_notification = true,
                          .notification = "hi"};
const FetchEndFrame kFetchEnd{.transfer = 7, .lease = "r:7", .readers = 2};
const KvAnswerFrame kKvAnswer{.transfer = 7, .good = false, .why = "expired"};
const StageAskFrame kStageAsk{.count = 8};
const StageLendFrame kStageLend{.buffers = {3, 7}};
const StageRecallFrame kStageRecall{};
const StageBackFrame kStageBack{.buffers = {7}};
const StageFrame kStage{.transfer = 0x8000000000000001,
                        .when = StageWhen::kScatterLater,
                        .buffer = 7,
                        .runs = {{.address = 0x201000, .bytes = 512, .rkey = 0x12345678},
                                 {.address = 0x203000, .bytes = 1, .rkey = 0x12345678}}};
const StagedFrame kStaged{.transfer = 0x8000000000000001, .good = false, .why = "bus"};
const RegionsFrame kRegions{.target = kHelloAck.target,
                            .first = 1,
                            .last = 9,
                            .live = {{.first = 2, .last = 4}, {.first = 9, .last = 9}}};
const LeaseReadFrame kLeaseRead{.transfer = 7,
                                .lease = "r:7",
                                .contents =
                                    "\xab"
                                    "c",
                                .blocks_hash = 0x0102030405060708,
                                .within_nanos = 1'000'000'000,
                                .wait_nanos = 500'000'000};
const LeaseAnswerFrame kLeaseAnswer{
    .transfer = 7, .refusal = KvLeaseRefusal::kEnded, .why = "expired"};
// `kSize` bytes from `first` on.
template <size_t kSize>
std::array<uint8_t, kSize> Ascending(uint8_t first) {
  std::array<uint8_t, kSize> bytes{};
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<uint8_t>(first + i);
  return bytes;
}
const ProofFrame kProof{.signature = Ascending<64>(0x80)};
const LinkGoneFrame kLinkGone{.link = 0x0102030405060708};
const KeyFrame kDialledKey{.link = 3, .key = Ascending<32>(0x10), .nonce = Ascending<32>(0x40)};
const KeyFrame kAcceptedKey{
    .key = Ascending<32>(0x10),
    .nonce = Ascending<32>(0x40),
    .signature = std::string(kProof.signature.begin(), kProof.signature.end())};

std::vector<std::pair<FrameType, std::string>> AllBodies() {
  return {{FrameType::kHello, Encode(kHello)},
          {FrameType::kHelloAck, Encode(kHelloAck)},
          {FrameType::kRefuse, Encode(kRefuse)},
          {FrameType::kOpen, Encode(kOpen)},
          {FrameType::kAmend, Encode(kAmend)},
          {FrameType::kAbort, Encode(kAbort)},
          {FrameType::kDiscard, Encode(kDiscard)},
          {FrameType::kSlotRequest, Encode(kSlotRequest)},
          {FrameType::kQuiet, Encode(kQuiet)},
          {FrameType::kReleased, Encode(kReleased)},
          {FrameType::kSlotGrant, Encode(kSlotGrant)},
          {FrameType::kCredit, Encode(kCredit)},
          {FrameType::kQuiesce, Encode(kQuiesce)},
          {FrameType::kPing, Encode(kPing)},
          {FrameType::kFenceRail, Encode(kRail)},
          {FrameType::kRailFenced, Encode(kRail)},
          {FrameType::kFetchEnd, Encode(kFetchEnd)},
          {FrameType::kKvAnswer, Encode(kKvAnswer)},
          {FrameType::kStageAsk, Encode(kStageAsk)},
          {FrameType::kStageLend, Encode(kStageLend)},
          {FrameType::kStageRecall, Encode(kStageRecall)},
          {FrameType::kStageBack, Encode(kStageBack)},
          {FrameType::kStage, Encode(kStage)},
          {FrameType::kStaged, Encode(kStaged)},
          {FrameType::kRegions, Encode(kRegions)},
          {FrameType::kLeaseRead, Encode(kLeaseRead)},
          {FrameType::kLeaseAnswer, Encode(kLeaseAnswer)},
          {FrameType::kKey, Encode(kAcceptedKey)},
          {FrameType::kProof, Encode(kProof)},
          {FrameType::kLinkGone, Encode(kLinkGone)}};
}

// Expect the golden bytes for `frame`, the frame back from them, and every shorter or
// longer body refused.
template <typename Frame>
void ExpectFormat(const Frame& frame, const char* golden) {
  const std::string bytes = Encode(frame);
  EXPECT_EQ(Hex(bytes), Golden(golden));
  ASSERT_OK_AND_ASSIGN(const Frame decoded, Decode<Frame>(AsBytes(bytes)));
  EXPECT_EQ(decoded, frame);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(Fails(Decode<Frame>(AsBytes(bytes).first(size)), kInvalid, {"damaged"})) << size;
  }
  EXPECT_TRUE(Fails(Decode<Frame>(AsBytes(bytes + '\0')), kInvalid, {"end", "1 bytes left over"}));
}

TEST(WireFormat, BytesOfVersion1AreKept) {
  ExpectFormat(kHello, golden::kHello);
  ExpectFormat(kRefuse, golden::kRefuse);
  ExpectFormat(kOpen, golden::kOpen);
  ExpectFormat(kAmend, golden::kAmend);
  ExpectFormat(kAbort, golden::kAbort);
  ExpectFormat(kDiscard, golden::kDiscard);
  ExpectFormat(kSlotRequest, golden::kSlotRequest);
  ExpectFormat(kSlotGrant, golden::kSlotGrant);
  ExpectFormat(kReleased, golden::kReleased);
  ExpectFormat(kCredit, golden::kCredit);
  ExpectFormat(kQuiesce, golden::kQuiesce);
  ExpectFormat(kQuiet, golden::kQuiet);
  ExpectFormat(kPing, golden::kPing);
}

TEST(WireFormat, BytesOfVersion3AreKept) {
  ExpectFormat(kRail, golden::kRail);
  EXPECT_EQ(static_cast<int>(FrameType::kFenceRail), 18);
  EXPECT_EQ(static_cast<int>(FrameType::kRailFenced), 19);
}

TEST(WireFormat, BytesOfVersion4AreKept) {
  ExpectFormat(OpenFrame{.transfer = 7, .notice = Notice::kKvPart}, golden::kOpenKvPart);
  ExpectFormat(kKvPart, golden::kKvPart);
  ExpectFormat(kFetchEnd, golden::kFetchEnd);
  ExpectFormat(kKvAnswer, golden::kKvAnswer);
  EXPECT_EQ(static_cast<int>(FrameType::kFetchEnd), 21);
  EXPECT_EQ(static_cast<int>(FrameType::kKvAnswer), 22);
}

TEST(WireFormat, BytesOfVersion5AreKept) {
  ExpectFormat(kStageAsk, golden::kStageAsk);
  ExpectFormat(kStageLend, golden::kStageLend);
  ExpectFormat(kStageRecall, golden::kStageRecall);
  ExpectFormat(kStageBack, golden::kStageBack);
  ExpectFormat(kStage, golden::kStage);
  ExpectFormat(kStaged, golden::kStaged);
  EXPECT_EQ(static_cast<int>(FrameType::kStageAsk), 23);
  EXPECT_EQ(static_cast<int>(FrameType::kStaged), 28);
}

TEST(WireFormat, BytesOfVersion6AreKept) {
  ExpectFormat(kRegions, golden::kRegions);
  EXPECT_EQ(static_cast<int>(FrameType::kRegions), 29);
}

TEST(WireFormat, RunsOfRegionsAscendWithinTheirPage) {
  const auto decoded = [](std::vector<RegionRun> live, uint32_t first = 5, uint32_t last = 20) {
    const RegionsFrame page{.first = first, .last = last, .live = std::move(live)};
    return Decode<RegionsFrame>(AsBytes(Encode(page)));
  };
  EXPECT_OK(decoded({}));
  EXPECT_OK(decoded({{5, 20}}));
  EXPECT_OK(decoded({{5, 5}, {7, 20}}));
  EXPECT_OK(decoded({{UINT32_MAX, UINT32_MAX}}, 1, UINT32_MAX));
  for (const std::vector<RegionRun>& live : std::vector<std::vector<RegionRun>>{
           {{4, 6}}, {{20, 21}}, {{5, 6}, {7, 8}}, {{9, 9}, {5, 5}}, {{5, 9}, {9, 9}}}) {
    EXPECT_TRUE(Fails(decoded(live), kInvalid, {"regions", "live", "ascend"}));
  }
  EXPECT_TRUE(Fails(decoded({{9, 8}}), kInvalid, {"regions", "run"}));
  EXPECT_TRUE(Fails(decoded({}, 0), kInvalid, {"regions", "first"}));
  EXPECT_TRUE(Fails(decoded({}, 21), kInvalid, {"regions", "first"}));
  std::vector<RegionRun> many;
  for (uint32_t i = 0; i <= kMaxRegionRuns; ++i) many.push_back({2 * i + 1, 2 * i + 1});
  EXPECT_TRUE(Fails(decoded(many, 1, 1'000'000), kInvalid, {"regions", "16000"}));
  many.pop_back();
  EXPECT_OK(decoded(many, 1, 1'000'000));
}

TEST(WireFormat, BytesOfLeasesInVersion6AreKept) {
  ExpectFormat(kLeaseRead, golden::kLeaseRead);
  ExpectFormat(kLeaseAnswer, golden::kLeaseAnswer);
  EXPECT_EQ(static_cast<int>(FrameType::kLeaseRead), 30);
  EXPECT_EQ(static_cast<int>(FrameType::kLeaseAnswer), 31);
}

TEST(WireFormat, BytesOfVersion7AreKept) {
  ExpectFormat(kHelloAck, golden::kHelloAck);
  ExpectFormat(kDialledKey, golden::kDialledKey);
  ExpectFormat(kAcceptedKey, golden::kAcceptedKey);
  ExpectFormat(kProof, golden::kProof);
  ExpectFormat(kLinkGone, golden::kLinkGone);
  EXPECT_EQ(static_cast<int>(FrameType::kKey), 32);
  EXPECT_EQ(static_cast<int>(FrameType::kProof), 33);
  EXPECT_EQ(static_cast<int>(FrameType::kLinkGone), 34);
}

TEST(WireFormat, AKeyHasAWholeSignatureOrNone) {
  KeyFrame key = kDialledKey;
  for (const size_t size : {1u, 63u, 65u}) {
    key.signature.assign(size, 'x');
    EXPECT_TRUE(Fails(Decode<KeyFrame>(AsBytes(Encode(key))), kInvalid, {"key", "signature"}));
  }
}

// A later version may refuse for a reason that this one does not know.
TEST(WireFormat, AnUnknownReasonCanBeRead) {
  std::string body = Encode(kRefuse);
  body[0] = 99;
  ASSERT_OK_AND_ASSIGN(const RefuseFrame refuse, Decode<RefuseFrame>(AsBytes(body)));
  EXPECT_EQ(refuse.reason, RefuseReason{99});
  EXPECT_EQ(refuse.text, "gone");
  body[0] = 0;
  EXPECT_TRUE(Fails(Decode<RefuseFrame>(AsBytes(body)), kInvalid, {"refuse", "reason"}));
}

TEST(WireFormat, ALeaseAnswerHasOneOfSixCodes) {
  std::string body = Encode(kLeaseAnswer);
  for (uint8_t code = 0; code <= 5; ++code) {
    body[8] = static_cast<char>(code);
    EXPECT_EQ(Decode<LeaseAnswerFrame>(AsBytes(body))->refusal, KvLeaseRefusal{code});
  }
  body[8] = 6;
  EXPECT_TRUE(Fails(Decode<LeaseAnswerFrame>(AsBytes(body)), kInvalid, {"refusal"}));
}

TEST(WireFormat, AStageHasOneTo4096Runs) {
  StageFrame stage = kStage;
  stage.runs.resize(kMaxStageRuns, stage.runs[0]);
  EXPECT_EQ(*Decode<StageFrame>(AsBytes(Encode(stage))), stage);
  stage.runs.push_back(stage.runs[0]);
  EXPECT_TRUE(Fails(Decode<StageFrame>(AsBytes(Encode(stage))), kInvalid, {"runs", "4096"}));
  stage.runs.clear();
  EXPECT_TRUE(Fails(Decode<StageFrame>(AsBytes(Encode(stage))), kInvalid, {"runs", "4096"}));
}

TEST(WireFormat, DefaultsOfListFramesSurvive) {
  EXPECT_EQ(*Decode<ReleasedFrame>(AsBytes(Encode(ReleasedFrame{}))), ReleasedFrame{});
  const OpenFrame open{.transfer = 1};
  EXPECT_EQ(*Decode<OpenFrame>(AsBytes(Encode(open))), open);
  HelloFrame without_auth = kHello;
  without_auth.auth = {};
  EXPECT_EQ(*Decode<HelloFrame>(AsBytes(Encode(without_auth))), without_auth);
}

TEST(WireFormat, NoTransferIs0) {
  const auto refused = [](const absl::Status& status) {
    return Fails(status, absl::StatusCode::kInvalidArgument, {"transfer: must not be 0"});
  };
  EXPECT_TRUE(refused(Decode<OpenFrame>(AsBytes(Encode(OpenFrame{}))).status()));
  EXPECT_TRUE(refused(Decode<AmendFrame>(AsBytes(Encode(AmendFrame{}))).status()));
  EXPECT_TRUE(refused(Decode<AbortFrame>(AsBytes(Encode(AbortFrame{}))).status()));
  EXPECT_TRUE(refused(Decode<DiscardFrame>(AsBytes(Encode(DiscardFrame{}))).status()));
}

TEST(WireFormat, TypesHaveTheNumbersOfVersion1) {
  EXPECT_EQ(static_cast<int>(FrameType::kHello), 1);
  EXPECT_EQ(static_cast<int>(FrameType::kOpen), 4);
  EXPECT_EQ(static_cast<int>(FrameType::kReleased), 10);
  EXPECT_EQ(static_cast<int>(FrameType::kPing), 14);
  EXPECT_EQ(static_cast<int>(FrameType::kAck), 16);
}

TEST(WireFormat, EnvelopeBytesAreKept) {
  std::string message = EncodeMessage(FrameType::kPing, 3, 0x0102, Encode(kPing));
  EXPECT_EQ(Hex(message), Golden(golden::kPingMessage));
  ASSERT_OK_AND_ASSIGN(const Envelope envelope, DecodeEnvelope(AsBytes(message)));
  EXPECT_EQ(envelope.type, FrameType::kPing);
  EXPECT_EQ(envelope.sequence, 3u);
  EXPECT_EQ(envelope.ack, 0x0102u);
  EXPECT_EQ(*Decode<PingFrame>(envelope.body), kPing);

  PatchAck(message, 0xffffffffffffffff);
  ASSERT_OK_AND_ASSIGN(const Envelope patched, DecodeEnvelope(AsBytes(message)));
  EXPECT_EQ(patched.ack, 0xffffffffffffffff);
  EXPECT_EQ(patched.sequence, 3u);
  EXPECT_EQ(*Decode<PingFrame>(patched.body), kPing);
}

TEST(WireFormat, PatchAckLeavesWhatIsNoMessageAlone) {
  std::string shorter(kEnvelopeBytes - 1, 'x');
  PatchAck(shorter, 1);
  EXPECT_EQ(shorter, std::string(kEnvelopeBytes - 1, 'x'));
}

TEST(WireFormat, DamagedEnvelopesAreRefused) {
  const std::string message = EncodeMessage(FrameType::kPing, 3, 4, Encode(kPing));
  for (size_t size = 0; size < message.size(); ++size) {
    EXPECT_TRUE(Fails(DecodeEnvelope(AsBytes(message).first(size)), kInvalid)) << size;
  }
  EXPECT_TRUE(Fails(DecodeEnvelope(AsBytes(message + "x")), kInvalid, {"body bytes"}));
  for (const int type : {0, 20, static_cast<int>(FrameType::kLast) + 1, 0xff}) {
    std::string bad = message;
    bad[0] = static_cast<char>(type);
    EXPECT_TRUE(Fails(DecodeEnvelope(AsBytes(bad)), kInvalid, {"type"}));
  }
  for (const size_t reserved : {1u, 2u, 3u}) {
    std::string bad = message;
    bad[reserved] = 1;
    EXPECT_TRUE(Fails(DecodeEnvelope(AsBytes(bad)), kInvalid, {"flags"}));
  }
}

// Nobody has a session without a number: 0 says that one is not known.
TEST(WireFormat, ASessionIsNotNumber0) {
  HelloFrame hello = kHello;
  hello.session = 0;
  EXPECT_TRUE(Fails(Decode<HelloFrame>(AsBytes(Encode(hello))), kInvalid, {"hello", "session"}));
  HelloAckFrame ack = kHelloAck;
  ack.session = 0;
  EXPECT_TRUE(
      Fails(Decode<HelloAckFrame>(AsBytes(Encode(ack))), kInvalid, {"hello-ack", "session"}));
  hello = kHello;
  hello.peer_session = 0;
  EXPECT_OK(Decode<HelloFrame>(AsBytes(Encode(hello))));
}

// Each frame with a number is for one half of a session.
TEST(WireFormat, WhichFramesComeFromAnInitiator) {
  for (const FrameType type :
       {FrameType::kOpen, FrameType::kAmend, FrameType::kAbort, FrameType::kDiscard,
        FrameType::kSlotRequest, FrameType::kQuiet, FrameType::kLeaseRead, FrameType::kFetchEnd,
        FrameType::kStageAsk, FrameType::kStageBack, FrameType::kStage}) {
    EXPECT_TRUE(IsFromInitiator(type)) << static_cast<int>(type);
  }
  for (const FrameType type :
       {FrameType::kReleased, FrameType::kSlotGrant, FrameType::kCredit, FrameType::kQuiesce,
        FrameType::kKvAnswer, FrameType::kLeaseAnswer, FrameType::kStageLend,
        FrameType::kStageRecall, FrameType::kStaged}) {
    EXPECT_FALSE(IsFromInitiator(type)) << static_cast<int>(type);
  }
}

TEST(WireFormat, AMessageHoldsOneFrameOrMore) {
  const std::string first = EncodeMessage(FrameType::kQuiet, 5, 6, QuietFrame{.id = 7});
  const std::string second = EncodeMessage(FrameType::kAck, 0, 9, std::string_view());
  const std::string both = first + second;
  std::span<const std::byte> left = AsBytes(both);
  EXPECT_TRUE(testing::SameBytes(first, TakeFrame(left)));
  EXPECT_TRUE(testing::SameBytes(second, TakeFrame(left)));
  EXPECT_TRUE(left.empty());
  // Expect what is too short, or says that it is longer than it is, to be taken whole and refused.
  for (const std::string& bad : {first.substr(0, 7), first.substr(0, first.size() - 1)}) {
    left = AsBytes(bad);
    EXPECT_FALSE(DecodeEnvelope(TakeFrame(left)).ok());
    EXPECT_TRUE(left.empty());
  }
}

TEST(WireFormat, ImmediateHoldsSlotAndGeneration) {
  const SlotRef ref{.slot = 0xabcde, .generation = 0xf01};
  EXPECT_EQ(EncodeImmediate(ref), 0xabcdef01u);
  EXPECT_EQ(DecodeImmediate(0xabcdef01), ref);
  EXPECT_EQ(NextGeneration(4095), 0u);
}

// A count or a length may promise anything; nothing is allocated for what cannot be there.
TEST(WireFormat, CountsAreHeldAgainstTheBytesLeft) {
  const std::string transfer(8, '\1');
  const std::string huge(4, '\xff');
  EXPECT_TRUE(Fails(Decode<DiscardFrame>(AsBytes(transfer + huge)), kInvalid,
                    {"discard", "slots", "4294967295"}));
  EXPECT_TRUE(Fails(Decode<ReleasedFrame>(AsBytes(huge + std::string(64, '\0'))), kInvalid,
                    {"released", "arrived"}));
  const std::string open_head = transfer + transfer + '\1' + std::string(4, '\0');
  EXPECT_TRUE(Fails(Decode<OpenFrame>(AsBytes(open_head + huge)), kInvalid,
                    {"open", "notification", "4294967295"}));
}

// They end up in logs and in Python: see CheckName.
TEST(WireFormat, NamesThatCannotBeShownAreRefused) {
  const auto refused = [](const auto& frame, const char* field) {
    using Frame = std::decay_t<decltype(frame)>;
    const auto decoded = Decode<Frame>(AsBytes(Encode(frame)));
    EXPECT_TRUE(Fails(decoded, kInvalid, {field, "UTF-8"}));
    EXPECT_TRUE(IsPrintable(std::string(decoded.status().message()))) << decoded.status();
  };
  for (const char* bad : {"\xff", "a\nb", "\x1b[2J", "\xc3"}) {
    HelloFrame hello = kHello;
    hello.name = bad;
    refused(hello, "name");
    KvPartFrame part = kKvPart;
    part.cache = bad;
    refused(part, "cache");
    part = kKvPart;
    part.request = bad;
    refused(part, "request");
    refused(LeaseReadFrame{.transfer = 1, .lease = bad}, "lease");
    refused(FetchEndFrame{.transfer = 1, .lease = bad}, "lease");
  }
}

TEST(WireFormat, FieldsOutOfRangeAreNamed) {
  HelloFrame hello = kHello;
  hello.name = "";
  EXPECT_TRUE(Fails(Decode<HelloFrame>(AsBytes(Encode(hello))), kInvalid, {"hello", "name"}));
  hello.name = std::string(256, 'n');
  EXPECT_TRUE(Fails(Decode<HelloFrame>(AsBytes(Encode(hello))), kInvalid, {"name", "256"}));
  hello = kHello;
  hello.min_version = 3;
  EXPECT_TRUE(Fails(Decode<HelloFrame>(AsBytes(Encode(hello))), kInvalid, {"max_version"}));

  OpenFrame open = kOpen;
  open.lanes[1].arrivals = 0;
  EXPECT_TRUE(Fails(Decode<OpenFrame>(AsBytes(Encode(open))), kInvalid, {"open", "arrivals"}));
  open = kOpen;
  open.notice = Notice::kNone;
  EXPECT_TRUE(Fails(Decode<OpenFrame>(AsBytes(Encode(open))), kInvalid, {"notification"}));
  open = kOpen;
  open.notification = std::string(kMaxNotificationBytes, 'n');
  EXPECT_OK(Decode<OpenFrame>(AsBytes(Encode(open))));
  open.notification += 'n';
  EXPECT_TRUE(Fails(Decode<OpenFrame>(AsBytes(Encode(open))), kInvalid, {"notification", "65537"}));

  std::string notice = Encode(kOpen);
  notice[16] = 3;
  EXPECT_TRUE(Fails(Decode<OpenFrame>(AsBytes(notice)), kInvalid, {"open", "notice"}));
  KvPartFrame part = kKvPart;
  part.request = "";
  EXPECT_TRUE(Fails(Decode<KvPartFrame>(AsBytes(Encode(part))), kInvalid, {"request"}));
  part = kKvPart;
  part.cache = std::string(256, 'c');
  EXPECT_TRUE(Fails(Decode<KvPartFrame>(AsBytes(Encode(part))), kInvalid, {"cache", "256"}));
  part = kKvPart;
  part.has_notification = false;
  EXPECT_TRUE(Fails(Decode<KvPartFrame>(AsBytes(Encode(part))), kInvalid, {"notification"}));
  // Beside the largest notification, the longest names have room.
  part.notification = std::string(kMaxKvNotificationBytes, 'n');
  part.request = part.cache = std::string(255, 'c');
  EXPECT_LE(Encode(part).size(), kMaxNotificationBytes);

  SlotGrantFrame grant{.range = {.first = 1048575, .count = 1}, .generation = 0};
  EXPECT_OK(Decode<SlotGrantFrame>(AsBytes(Encode(grant))));
  grant.range.count = 0xffffffff;
  EXPECT_TRUE(Fails(Decode<SlotGrantFrame>(AsBytes(Encode(grant))), kInvalid, {"range"}));
  grant = {.range = {.first = 0, .count = 64}, .generation = 4096};
  EXPECT_TRUE(Fails(Decode<SlotGrantFrame>(AsBytes(Encode(grant))), kInvalid, {"generation"}));

  std::string ack = Encode(kHelloAck);
  ack[2] = 1;
  EXPECT_TRUE(Fails(Decode<HelloAckFrame>(AsBytes(ack)), kInvalid, {"hello-ack", "auth"}));
  std::string abort = Encode(kAbort);
  abort[16] = 2;
  EXPECT_TRUE(Fails(Decode<AbortFrame>(AsBytes(abort)), kInvalid, {"abort", "opened"}));
}

TEST(WireFormat, CommonVersionIsTheHighestOfBoth) {
  EXPECT_EQ(*CommonVersion(1, 1, 1, 1), 1);
  EXPECT_EQ(*CommonVersion(1, 4, 2, 7), 4);
  EXPECT_EQ(*CommonVersion(3, 9, 2, 3), 3);
  EXPECT_TRUE(Fails(CommonVersion(1, 2, 3, 4), absl::StatusCode::kFailedPrecondition,
                    {"1 to 2", "3 to 4"}));
  EXPECT_TRUE(Fails(CommonVersion(3, 4, 1, 2), absl::StatusCode::kFailedPrecondition));
}

// A small run of the fuzz target's checks: damaged messages are refused or mean what they say.
TEST(WireFormat, MutatedMessagesHold) {
  std::mt19937_64 random(testing::TestSeed());
  const auto pick = [&](size_t below) { return static_cast<size_t>(random() % below); };
  for (const auto& [type, body] : AllBodies()) {
    const std::string whole = EncodeMessage(type, 1, 2, body);
    ASSERT_TRUE(testing::MessageHolds(AsBytes(whole)));
    for (int round = 0; round < testing::Scaled(2000); ++round) {
      std::string mutated = body;
      for (size_t edits = pick(4) + 1; edits > 0 && !mutated.empty(); --edits) {
        const size_t at = pick(mutated.size());
        switch (pick(4)) {
          case 0:
            mutated[at] = static_cast<char>(random());
            break;
          case 1:
            mutated[at] = static_cast<char>(mutated[at] ^ (1 << pick(8)));
            break;
          case 2:
            mutated.erase(at, pick(8));
            break;
          default:
            mutated.insert(at, pick(8), static_cast<char>(random()));
        }
      }
      const std::string message = EncodeMessage(type, 1, 2, mutated);
      ASSERT_TRUE(testing::MessageHolds(AsBytes(message))) << Hex(message);
    }
  }
}

}  // namespace
}  // namespace kvxfer
