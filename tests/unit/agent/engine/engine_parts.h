// What the parts of an engine stand on, without an engine: a loop whose rounds do nothing, a peer
// that the test plays, and the tables of peers.

#ifndef KVXFER_TESTS_UNIT_AGENT_ENGINE_ENGINE_PARTS_H_
#define KVXFER_TESTS_UNIT_AGENT_ENGINE_ENGINE_PARTS_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/peer_table.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/session/inbound.h"
#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {

class EngineParts : public FakePeer {
 protected:
  EngineParts() {
    metadata_.incarnation = Incarnation::Random();
    EXPECT_OK(runtime_.loop.Start(&idle_, {}));
  }
  ~EngineParts() { runtime_.loop.Stop(); }

  // A backend that reaches the peer, and regions at both.
  void MakeReachable() {
    Both("tcp");
    MakeRegions();
  }
  // What AddPeer does.
  absl::Status Install() {
    return gate_.CallFor<absl::Status>([&] { return peers_.Install(metadata_); });
  }
  // A notification, as it is posted.
  TransferPtr Notify(uint64_t id) {
    auto record = std::make_shared<internal::TransferRecord>();
    record->kind = TransferKind::kNotify;
    record->id = id;
    record->peer = metadata_.name;
    record->incarnation = metadata_.incarnation;
    record->options.notification = "word";
    record->posted = Now();
    record->deadline = record->posted + 100 * kTimeout;
    return record;
  }
  // The thread that submits does so on the driver.
  void Wait(const TransferPtr& record) {
    ASSERT_OK(gate_.WaitFor(
        record.get(), [&] { return record->ended(); }, Now() + 100 * kTimeout));
    ASSERT_TRUE(record->ended());
  }

  InboundHub inbound_{&runtime_};
  CallGate gate_{&runtime_.loop, "here"};
  PeerViews views_;
  PeerTable peers_{&runtime_, &inbound_, &views_};

  int posts() const { return idle_.posts; }

 private:
  // An object of its own: the loop's thread calls it while a test's class is made and destroyed.
  struct Idle final : Driven {
    bool Round(uint64_t /*readable*/, Time /*now*/, Leaving /*leaving*/) override { return false; }
    bool QuickRound(Time /*now*/, Leaving /*leaving*/) override { return false; }
    void Post() override { ++posts; }
    bool Arm() override { return true; }
    Time NextTimer() override { return Time::max(); }

    std::atomic<int> posts{0};
  };
  Idle idle_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_AGENT_ENGINE_ENGINE_PARTS_H_
