#include "src/core/protocol/handshake.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/protocol/codec.h"
#include "src/core/protocol/transitions.h"

namespace kvxfer {
namespace {

using State = Handshake::State;

constexpr std::string_view kContext = "kvxfer handshake, version 7";

struct Transition {
  State from;
  FrameType event;  // a message of this type comes
  State to;
};
constexpr std::array<Transition, 6> kTransitions{{
    {State::kDialled, FrameType::kKey, State::kProved},
    {State::kOpen, FrameType::kHello, State::kHasHello},
    {State::kOpen, FrameType::kKey, State::kHasKey},
    {State::kHasHello, FrameType::kKey, State::kAnswered},
    {State::kHasKey, FrameType::kHello, State::kAnswered},
    {State::kAnswered, FrameType::kProof, State::kProved},
}};

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

Handshake Handshake::Dialling(Side side, uint64_t link, HelloFrame hello, uint64_t ack) {
  Handshake made(std::move(side), State::kDialled);
  made.hello_message_ = EncodeMessage(FrameType::kHello, 0, ack, hello);
  made.hello_ = std::move(hello);
  made.dialled_ = {.link = link, .key = made.side_.key->public_key(), .nonce = made.side_.nonce};
  return made;
}

Handshake Handshake::Accepting(Side side) {
  Handshake made(std::move(side), State::kOpen);
  made.accepted_ = {.key = made.side_.key->public_key(), .nonce = made.side_.nonce};
  return made;
}

std::string Handshake::KeyMessage() const { return EncodeMessage(FrameType::kKey, 0, 0, dialled_); }

absl::StatusOr<std::string> Handshake::Take(std::span<const std::byte> message) {
  const absl::StatusOr<Envelope> envelope = DecodeEnvelope(message);
  absl::StatusOr<std::string> answer =
      envelope.ok() ? Handle(*envelope, message) : absl::StatusOr<std::string>(envelope.status());
  if (!answer.ok()) state_ = State::kFailed;
  return answer;
}

absl::StatusOr<std::string> Handshake::Handle(const Envelope& envelope,
                                              std::span<const std::byte> message) {
  const State* const to = NextState(kTransitions, state_, envelope.type);
  if (to == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a frame of type ", static_cast<int>(envelope.type), " does not come at this point"));
  }
  if (message.size() > kMaxMessageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame of ", message.size(), " bytes before the proof"));
  }
  // What no signature covers has one value.
  if (envelope.sequence != 0 || (envelope.type != FrameType::kHello && envelope.ack != 0)) {
    return absl::InvalidArgumentError("a numbered frame before the proof");
  }
  absl::Status status;
  if (envelope.type == FrameType::kHello) {
    status = TakeHello(envelope, message);
  } else if (envelope.type == FrameType::kProof) {
    status = TakeProof(envelope);
  } else if (state_ == State::kDialled) {
    auto proof = TakeAcceptedKey(envelope);
    if (proof.ok()) state_ = *to;
    return proof;
  } else {
    status = TakeDialledKey(envelope);
  }
  if (!status.ok()) return status;
  state_ = *to;
  return state_ == State::kAnswered ? AnswerKeys() : std::string();
}

absl::Status Handshake::TakeHello(const Envelope& envelope, std::span<const std::byte> message) {
  auto hello = Decode<HelloFrame>(envelope.body);
  if (!hello.ok()) return hello.status();
  hello_ = *std::move(hello);
  hello_ack_ = envelope.ack;
  hello_message_ = Text(message);
  return CheckHello();
}

absl::Status Handshake::CheckHello() {
  const auto version = CommonVersion(hello_.min_version, hello_.max_version, kMinProtocolVersion,
                                     kMaxProtocolVersion);
  if (!version.ok()) {
    return Refuse(RefuseReason::kVersion, std::string(version.status().message()));
  }
  version_ = *version;
  if (hello_.target != side_.incarnation) {
    return Refuse(RefuseReason::kIncarnation,
                  absl::StrCat("this is incarnation ", side_.incarnation.ToString()));
  }
  if (hello_.initiator == side_.incarnation) {
    return Refuse(RefuseReason::kNotProved, "an agent does not connect to itself");
  }
  if (std::ranges::find(hello_.auth, AuthMethod::kNone) == hello_.auth.end()) {
    return Refuse(RefuseReason::kAuth, "no common authentication method");
  }
  return absl::OkStatus();
}

absl::Status Handshake::TakeDialledKey(const Envelope& envelope) {
  const auto key = Decode<KeyFrame>(envelope.body);
  if (!key.ok()) return key.status();
  if (key->link == 0 || !key->signature.empty()) {
    return absl::InvalidArgumentError("a key as the side that accepts sends it");
  }
  dialled_ = *key;
  return absl::OkStatus();
}

// Both keys are known, and of the other side nothing is proved: this is all that is done for it.
absl::StatusOr<std::string> Handshake::AnswerKeys() {
  if (auto status = CheckOwner(dialled_.key, hello_.initiator); !status.ok()) return status;
  const auto signature = side_.key->Sign(Signed(Role::kAccepts));
  if (!signature.ok()) return signature.status();
  KeyFrame answer = accepted_;
  answer.signature.assign(signature->begin(), signature->end());
  return EncodeMessage(FrameType::kKey, 0, 0, answer);
}

absl::StatusOr<std::string> Handshake::TakeAcceptedKey(const Envelope& envelope) {
  auto key = Decode<KeyFrame>(envelope.body);
  if (!key.ok()) return key.status();
  Signature signature{};
  if (key->link != 0 || key->signature.size() != signature.size()) {
    return absl::InvalidArgumentError("a key as the side that dials sends it");
  }
  std::ranges::copy(std::exchange(key->signature, {}), signature.begin());
  accepted_ = *std::move(key);
  if (auto status = CheckOwner(accepted_.key, hello_.target); !status.ok()) return status;
  if (!Verify(accepted_.key, Signed(Role::kAccepts), signature)) {
    return absl::UnauthenticatedError(
        absl::StrCat("it does not prove to be incarnation ", hello_.target.ToString()));
  }
  const auto own = side_.key->Sign(Signed(Role::kDials));
  if (!own.ok()) return own.status();
  return EncodeMessage(FrameType::kProof, 0, 0, ProofFrame{.signature = *own});
}

absl::Status Handshake::TakeProof(const Envelope& envelope) {
  const auto proof = Decode<ProofFrame>(envelope.body);
  if (!proof.ok()) return proof.status();
  if (!Verify(dialled_.key, Signed(Role::kDials), proof->signature)) {
    return absl::UnauthenticatedError(
        absl::StrCat("it does not prove to be incarnation ", hello_.initiator.ToString()));
  }
  return absl::OkStatus();
}

absl::Status Handshake::CheckOwner(const PublicKey& key, const Incarnation& said) const {
  const auto owner = IncarnationOf(key);
  if (!owner.ok()) return owner.status();
  if (*owner == said) return absl::OkStatus();
  return absl::UnauthenticatedError(absl::StrCat("it says that it is incarnation ", said.ToString(),
                                                 ", and has the key of ", owner->ToString()));
}

// Every part with its length, so that no two handshakes give the same bytes.
std::string Handshake::Signed(Role role) const {
  wire::Writer covered;
  const auto add = [&covered](std::string_view part) { covered.Text("part", part, 0, 0); };
  add(kContext);
  covered.Int("role", static_cast<uint8_t>(role));
  add(hello_message_);
  add(Encode(dialled_));
  add(Encode(accepted_));
  add(side_.backend);
  add(side_.binding);
  return covered.Take();
}

absl::Status Handshake::Refuse(RefuseReason reason, const std::string& text) {
  refusal_ = reason;
  return absl::FailedPreconditionError(text);
}

}  // namespace kvxfer
