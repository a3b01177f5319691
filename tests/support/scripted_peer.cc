#include "tests/support/scripted_peer.h"

#include <algorithm>
#include <utility>

#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"

namespace kvxfer::testing {
namespace {

Flavour Over(const std::string& backend, const std::string& name) {
  return {.name = name, .backend = backend, .memory = MemoryType::kAttached, .faults = {}};
}

absl::StatusOr<AgentMetadata> MetadataOf(const Agent& agent) {
  const absl::StatusOr<std::string> bytes = agent.Metadata();
  if (!bytes.ok()) return bytes.status();
  return DecodeMetadata(*bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ScriptedPeer>> ScriptedPeer::Initiator(const Agent& agent,
                                                                      const std::string& name,
                                                                      const std::string& backend) {
  auto party = Party::Make(Over(backend, name), name);
  if (!party.ok()) return party.status();
  std::unique_ptr<ScriptedPeer> peer(new ScriptedPeer);
  peer->party_ = *std::move(party);
  peer->name_ = name;
  if (!peer->Hello(agent, 0) || peer->Heard(FrameType::kHelloAck).empty()) {
    return absl::UnavailableError("the hello was not answered");
  }
  return peer;
}

bool ScriptedPeer::Hello(const Agent& agent, uint64_t oldest_kept, uint16_t version) {
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
  if (oldest_kept == 0) {
    ++session_;
    sequence_ = 0;
  }
  const HelloFrame hello{.max_version = version,
                         .initiator = self_,
                         .target = metadata->incarnation,
                         .session = session_,
                         .oldest_kept = oldest_kept,
                         .name = name_};
  return Until([&] { return link.connected; }) &&
         Send(EncodeMessage(FrameType::kHello, 0, 0, Encode(hello))) && Until([&] {
           return !Heard(FrameType::kHelloAck).empty() || !Heard(FrameType::kRefuse).empty();
         });
}

absl::StatusOr<std::unique_ptr<ScriptedPeer>> ScriptedPeer::Target(
    Agent& agent, const std::string& name, const std::vector<RemoteRegion>& regions,
    const std::string& backend, RegionId staging) {
  auto party = Party::Make(Over(backend, name), name);
  if (!party.ok()) return party.status();
  std::unique_ptr<ScriptedPeer> peer(new ScriptedPeer);
  peer->party_ = *std::move(party);
  peer->name_ = name;
  AgentMetadata metadata{.name = name,
                         .incarnation = peer->self_,
                         .min_version = kMinProtocolVersion,
                         .max_version = kMaxProtocolVersion,
                         .host = peer->party_->host()};
  metadata.backends.push_back({backend, peer->party_->backend().Describe().address});
  for (const RemoteRegion& region : regions) {
    metadata.regions.push_back({.region = region, .keys = {}, .staging = region.id == staging});
    metadata.last_region = static_cast<uint32_t>(region.id);
  }
  const auto known = agent.AddPeer(EncodeMetadata(metadata));
  if (!known.ok()) return known.status();
  return peer;
}

bool ScriptedPeer::Accept(uint16_t version, uint32_t last_region) {
  if (!Until([&] { return !Heard(FrameType::kHello).empty(); })) return false;
  party_->links.back()->endpoint->Authorize();
  const HelloAckFrame ack{.version = version, .target = self_, .last_region = last_region};
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

std::vector<std::string> ScriptedPeer::Heard(FrameType type) const {
  std::vector<std::string> bodies;
  if (party_->links.empty()) return bodies;
  for (const std::string& message : party_->links.back()->messages) {
    const auto envelope = DecodeEnvelope(std::as_bytes(std::span(message)));
    if (!envelope.ok() || envelope->type != type) continue;
    bodies.emplace_back(reinterpret_cast<const char*>(envelope->body.data()),
                        envelope->body.size());
  }
  return bodies;
}

bool ScriptedPeer::Until(const std::function<bool()>& done) {
  const Time end = Now() + kAmple;
  while (!done()) {
    if (Now() >= end) return false;
    if (party_->Turn() == 0) std::this_thread::yield();
  }
  return true;
}

bool ScriptedPeer::UntilDown() {
  return Until([&] { return down(); });
}

}  // namespace kvxfer::testing
