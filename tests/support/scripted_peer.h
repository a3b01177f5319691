// A peer that says what the test tells it to: hellos and numbered frames over a real backend, with
// no agent behind them. For what no agent would send.
#ifndef KVXFER_TESTS_SUPPORT_SCRIPTED_PEER_H_
#define KVXFER_TESTS_SUPPORT_SCRIPTED_PEER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/core/protocol/wire_format.h"
#include "tests/support/backend_pair.h"

namespace kvxfer::testing {

class ScriptedPeer {
 public:
  // As an initiator: connected to `agent`, hello said and answered.
  static absl::StatusOr<std::unique_ptr<ScriptedPeer>> Initiator(
      const Agent& agent, const std::string& name, const std::string& backend = "loopback");
  // As a target: `agent` knows it as `name`, with `regions`, of which `staging` holds the slots
  // that it lends; Accept answers its hello.
  static absl::StatusOr<std::unique_ptr<ScriptedPeer>> Target(
      Agent& agent, const std::string& name, const std::vector<RemoteRegion>& regions,
      const std::string& backend = "loopback", RegionId staging = RegionId::kNone);
  // `last_region`: with version 6 the agent waits for pages of the regions up to it.
  bool Accept(uint16_t version = kMaxProtocolVersion, uint32_t last_region = 0);

  // Connects once more and says hello for the same session, or, where `oldest_kept` is 0, for a new
  // one; true: it was answered, or refused.
  bool Hello(const Agent& agent, uint64_t oldest_kept, uint16_t version = kMaxProtocolVersion);
  const Incarnation& self() const { return self_; }
  void Turn() { party_->Turn(); }
  // Takes what has come.
  void TakeAll() {
    while (party_->Turn() > 0) {
    }
  }
  // Closes the last connection.
  void Drop() { party_->links.pop_back(); }

  // One numbered frame; false: the connection is down.
  bool Say(FrameType type, const std::string& body);
  // A whole message.
  bool Send(const std::string& message);
  // What has come of that type over the last connection so far, in order: bodies.
  std::vector<std::string> Heard(FrameType type) const;
  // Turns until `done`; false after kAmple.
  bool Until(const std::function<bool()>& done);
  bool UntilDown();
  bool down() const { return party_->links.empty() || party_->links.back()->down; }

 private:
  ScriptedPeer() = default;

  std::unique_ptr<Party> party_;
  std::string name_;
  const Incarnation self_ = Incarnation::Random();
  uint64_t session_ = 6;
  uint64_t sequence_ = 0;  // of the last numbered frame of the session
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_SCRIPTED_PEER_H_
