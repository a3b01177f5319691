// A peer that says what the test tells it to: hellos and numbered frames over a real backend, with
// no agent behind them. For what no agent would send. It has a key of its own and proves itself as
// an agent does.
#ifndef KVXFER_TESTS_SUPPORT_SCRIPTED_PEER_H_
#define KVXFER_TESTS_SUPPORT_SCRIPTED_PEER_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/core/base/signing_key.h"
#include "src/core/protocol/handshake.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"
#include "tests/support/backend_pair.h"

namespace kvxfer::testing {

class ScriptedPeer {
 public:
  // As an initiator: connected to `agent`, hello said and answered.
  static absl::StatusOr<std::unique_ptr<ScriptedPeer>> Initiator(
      const Agent& agent, const std::string& name, const std::string& backend = "loopback");
  // Connected to nobody yet.
  static absl::StatusOr<std::unique_ptr<ScriptedPeer>> Stranger(
      const std::string& name, const std::string& backend = "loopback");
  // `metadata` says that its agent is where this peer is.
  void Serve(AgentMetadata& metadata) const;
  // As a target: `agent` knows it as `name`, with `regions`, of which `staging` holds the slots
  // that it lends; Accept answers its hello.
  static absl::StatusOr<std::unique_ptr<ScriptedPeer>> Target(
      Agent& agent, const std::string& name, const std::vector<RemoteRegion>& regions,
      const std::string& backend = "loopback", RegionId staging = RegionId::kNone);
  // `last_region`: the agent waits for pages of the regions up to it.
  bool Accept(uint32_t last_region = 0) { return Prove() && Answer(last_region); }
  // The two halves of Accept: answers the hello with a key, and hears the proof; says hello-ack.
  bool Prove() { return ProveAs(self_) && Proved(); }
  // Answers the hello of somebody who dials `claimed`, with this peer's own key.
  bool ProveAs(const Incarnation& claimed);
  bool Answer(uint32_t last_region = 0);

  // Connects once more, proves itself and says hello for the same session, if it `goes_on`, or else
  // for a new one; true: it was answered, or refused.
  bool Hello(const Agent& agent, bool goes_on);
  // The parts of Hello, for those that are to go another way. Dial only connects; NewHello is the
  // hello of the next session; Dialling begins a handshake over the last connection, with this
  // peer's own key whoever `hello` says that it is.
  bool Dial(const Agent& agent);
  HelloFrame NewHello(const Agent& agent);
  Handshake Dialling(const HelloFrame& hello);
  // What the last connection was refused for, if it was.
  std::optional<RefuseFrame> Refused() const;
  // Whole messages of that type that have come over the last connection.
  std::vector<std::string> Messages(FrameType type) const;
  const Incarnation& self() const { return self_; }
  void Turn() { party_->Turn(); }
  // Takes what has come.
  void TakeAll() {
    while (party_->Turn() > 0) {
    }
  }
  // Closes the last connection.
  void Drop() { party_->links.pop_back(); }
  // Fences a transfer over the last connection, as an initiator does that aborts it.
  void Fence(uint64_t transfer) { party_->links.back()->Fence(transfer); }
  // Closes the others.
  void DropEarlier() { party_->links.erase(party_->links.begin(), party_->links.end() - 1); }

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
  explicit ScriptedPeer(SigningKey key);
  Handshake::Side NewSide() const;
  bool Proved();  // the rest of Prove

  std::unique_ptr<Party> party_;
  std::string name_;
  const SigningKey key_;
  const Incarnation self_;
  std::optional<Handshake> handshake_{};  // of ProveAs
  uint64_t session_ = 6;                  // what this peer calls it
  uint64_t peer_session_ = 0;             // what the agent does
  uint64_t sequence_ = 0;                 // of the last numbered frame of the session
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_SCRIPTED_PEER_H_
