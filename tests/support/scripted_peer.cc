#include "tests/support/scripted_peer.h"

#include <algorithm>
#include <span>
#include <utility>

#include "src/core/base/random.h"
#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

Flavour Over(const std::string& backend, const std::string& name) {
  if (backend == "ucx") return UcxFlavour(name, "tcp,self");
  return {.name = name, .backend = backend, .memory = MemoryType::kAttached, .faults = {}};
}

absl::StatusOr<AgentMetadata> MetadataOf(const Agent& agent) {
  const absl::StatusOr<std::string> bytes = agent.Metadata();
  if (!bytes.ok()) return bytes.status();
  return DecodeMetadata(*bytes);
}

}  // namespace

ScriptedPeer::ScriptedPeer(SigningKey key)
    : key_(std::move(key)), self_(IncarnationOf(key_.public_key()).value_or(Incarnation{})) {}

Handshake::Side ScriptedPeer::NewSide() const {
  Handshake::Side side{
      .key = &key_, .incarnation = self_, .backend = std::string(party_->backend().name())};
  FillRandom(side.nonce);
  return side;
}

absl::StatusOr<std::unique_ptr<ScriptedPeer>> ScriptedPeer::Initiator(const Agent& agent,
                                                                      const std::string& name,
                                                                      const std::string& backend) {
  auto peer = Stranger(name, backend);
  if (!peer.ok()) return peer.status();
  if (!(*peer)->Hello(agent, false) || (*peer)->Heard(FrameType::kHelloAck).empty()) {
    return absl::UnavailableError("the hello was not answered");
  }
  return peer;
}

absl::StatusOr<std::unique_ptr<ScriptedPeer>> ScriptedPeer::Stranger(const std::string& name,
                                                                     const std::string& backend) {
  auto party = Party::Make(Over(backend, name), name);
  if (!party.ok()) return party.status();
  auto key = SigningKey::Generate();
  if (!key.ok()) return key.status();
  std::unique_ptr<ScriptedPeer> peer(new ScriptedPeer(*std::move(key)));
  peer->party_ = *std::move(party);
  peer->name_ = name;
  return peer;
}

bool ScriptedPeer::Dial(const Agent& agent) {
  const absl::StatusOr<AgentMetadata> metadata = MetadataOf(agent);
  if (!metadata.ok()) return false;
  const auto at = std::ranges::find_if(metadata->backends, [this](const auto& one) {
    return one.backend == party_->backend().name();
  });
  if (at == metadata->backends.end()) return false;
  auto endpoint = party_->backend().Connect(at->address, metadata->host);
  if (!endpoint.ok()) return false;
  TestLink& link = *party_->links.emplace_back(std::make_unique<TestLink>());
  link.endpoint = *std::move(endpoint);
  return Until([&] { return link.connected || link.down; }) && link.connected;
}

HelloFrame ScriptedPeer::NewHello(const Agent& agent) {
  ++session_;
  sequence_ = 0;
  const absl::StatusOr<AgentMetadata> metadata = MetadataOf(agent);
  return {.initiator = self_,
          .target = metadata.ok() ? metadata->incarnation : Incarnation{},
          .session = session_,
          .name = name_};
}

Handshake ScriptedPeer::Dialling(const HelloFrame& hello) {
  return Handshake::Dialling(NewSide(), party_->links.size(), hello, 0);
}

bool ScriptedPeer::Hello(const Agent& agent, bool goes_on) {
  if (!Dial(agent)) return false;
  const uint64_t sequence = sequence_;
  if (goes_on) --session_;
  HelloFrame hello = NewHello(agent);
  if (goes_on) {
    sequence_ = sequence;
    hello.peer_session = peer_session_;
  }
  Handshake handshake = Dialling(hello);
  const auto answered = [this](FrameType type) {
    return Until([&] { return !Heard(type).empty() || Refused() || down(); });
  };
  if (!Send(handshake.HelloMessage()) || !Send(handshake.KeyMessage()) ||
      !answered(FrameType::kKey)) {
    return false;
  }
  if (Refused()) return true;
  if (down()) return false;
  const auto proof = handshake.Take(std::as_bytes(std::span(Messages(FrameType::kKey).front())));
  if (!proof.ok() || !Send(*proof) || !answered(FrameType::kHelloAck)) return false;
  const std::vector<std::string> acks = Heard(FrameType::kHelloAck);
  if (acks.empty()) return Refused().has_value();
  const auto ack = Decode<HelloAckFrame>(std::as_bytes(std::span(acks.front())));
  peer_session_ = ack.ok() ? ack->session : 0;
  return ack.ok();
}

std::optional<RefuseFrame> ScriptedPeer::Refused() const {
  const std::vector<std::string> bodies = Heard(FrameType::kRefuse);
  if (bodies.empty()) return std::nullopt;
  return Decode<RefuseFrame>(std::as_bytes(std::span(bodies.front()))).value_or(RefuseFrame{});
}

absl::StatusOr<std::unique_ptr<ScriptedPeer>> ScriptedPeer::Target(
    Agent& agent, const std::string& name, const std::vector<RemoteRegion>& regions,
    const std::string& backend, RegionId staging) {
  auto made = Stranger(name, backend);
  if (!made.ok()) return made.status();
  std::unique_ptr<ScriptedPeer> peer = *std::move(made);
  AgentMetadata metadata{.name = name,
                         .incarnation = peer->self_,
                         .min_version = kMinProtocolVersion,
                         .max_version = kMaxProtocolVersion};
  peer->Serve(metadata);
  for (const RemoteRegion& region : regions) {
    metadata.regions.push_back({.region = region, .keys = {}, .staging = region.id == staging});
    metadata.last_region = static_cast<uint32_t>(region.id);
  }
  const auto known = agent.AddPeer(EncodeMetadata(metadata));
  if (!known.ok()) return known.status();
  return peer;
}

void ScriptedPeer::Serve(AgentMetadata& metadata) const {
  metadata.host = party_->host();
  metadata.backends = {
      {std::string(party_->backend().name()), party_->backend().Describe().address}};
}

bool ScriptedPeer::ProveAs(const Incarnation& claimed) {
  if (!Until(
          [&] { return !Heard(FrameType::kHello).empty() && !Heard(FrameType::kKey).empty(); })) {
    return false;
  }
  Handshake::Side side = NewSide();
  side.incarnation = claimed;
  Handshake& handshake = handshake_.emplace(Handshake::Accepting(std::move(side)));
  const auto take = [&](FrameType type) {
    return handshake.Take(std::as_bytes(std::span(Messages(type).front())));
  };
  if (!take(FrameType::kHello).ok()) return false;
  const auto key = take(FrameType::kKey);
  return key.ok() && Send(*key);
}

bool ScriptedPeer::Proved() {
  return Until([&] { return !Heard(FrameType::kProof).empty() || down(); }) && !down() &&
         handshake_->Take(std::as_bytes(std::span(Messages(FrameType::kProof).front()))).ok();
}

bool ScriptedPeer::Answer(uint32_t last_region) {
  party_->links.back()->endpoint->Authorize();
  const HelloAckFrame ack{.target = self_, .session = session_, .last_region = last_region};
  return Send(EncodeMessage(FrameType::kHelloAck, 0, 0, Encode(ack)));
}

bool ScriptedPeer::Say(FrameType type, const std::string& body) {
  return Send(EncodeMessage(type, ++sequence_, 0, body));
}

bool ScriptedPeer::Send(const std::string& message) {
  bool sent = false;
  party_->Turn();  // a connection that went down meanwhile is seen to be
  Until([&] { return down() || (sent = party_->links.back()->Send(message)); });
  return sent;
}

std::vector<std::string> ScriptedPeer::Messages(FrameType type) const {
  std::vector<std::string> messages;
  if (party_->links.empty()) return messages;
  for (const std::string& message : party_->links.back()->messages) {
    for (std::span<const std::byte> left = std::as_bytes(std::span(message)); !left.empty();) {
      const std::span<const std::byte> frame = TakeFrame(left);
      const auto envelope = DecodeEnvelope(frame);
      if (!envelope.ok() || envelope->type != type) continue;
      messages.emplace_back(reinterpret_cast<const char*>(frame.data()), frame.size());
    }
  }
  return messages;
}

std::vector<std::string> ScriptedPeer::Heard(FrameType type) const {
  std::vector<std::string> bodies = Messages(type);
  for (std::string& body : bodies) body.erase(0, kEnvelopeBytes);
  return bodies;
}

bool ScriptedPeer::Until(const std::function<bool()>& done) {
  const Time end = Now() + kAmple;
  while (!done()) {
    if (Now() >= end) return false;
    if (party_->Turn() == 0) Pause();
  }
  return true;
}

bool ScriptedPeer::UntilDown() {
  return Until([&] { return down(); });
}

}  // namespace kvxfer::testing
