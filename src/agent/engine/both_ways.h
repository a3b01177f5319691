// Connects the two halves of an agent for each peer: what it does as an initiator (PeerTable) and
// as a target (InboundHub).
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_ENGINE_BOTH_WAYS_H_
#define KVXFER_AGENT_ENGINE_BOTH_WAYS_H_

#include <cstdint>
#include <span>

#include "src/agent/engine/peer_table.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"

namespace kvxfer {

class BothWays final : public ReverseSession {
 public:
  // Both outlive it.
  BothWays(PeerTable* peers, InboundHub* inbound) : peers_(peers), inbound_(inbound) {}

  Piggyback PiggybackTo(const Incarnation& initiator) override {
    return inbound_->PiggybackTo(initiator);
  }
  bool IsConnected(const Incarnation& initiator) const override {
    return inbound_->IsConnected(initiator);
  }
  void PiggybackLinkFromLost(const Incarnation& peer) override {
    inbound_->PiggybackLinkLost(peer);
  }
  void PiggybackLinkToLost(const Incarnation& peer) override { peers_->PiggybackLinkLost(peer); }
  absl::Status OnPiggybackedFrom(const Incarnation& peer, uint64_t session,
                                 std::span<const std::byte> message) override {
    return inbound_->OnPiggybacked(peer, session, message);
  }
  absl::Status OnPiggybackedTo(const Incarnation& peer, uint64_t session,
                               std::span<const std::byte> message) override {
    return peers_->OnPiggybacked(peer, session, message);
  }

 private:
  PeerTable* const peers_;
  InboundHub* const inbound_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_BOTH_WAYS_H_
