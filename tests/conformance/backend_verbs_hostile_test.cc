// G7 and G8 against who connects to the verbs backend and means harm: before it is authorised it
// learns which ports there are and nothing is made for it; afterwards what it can ask for is
// bounded.

#include "tests/conformance/verbs_device.h"
#include "tests/support/raw_control.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using verbs::Answer;
using verbs::Offer;
using verbs::Ports;
using verbs::Probe;
using verbs::Probed;

class HostileVerbs : public VerbsDevice {
 protected:
  void SetUp() override {
    Use(Devices(1, 1));
    ASSERT_OK_AND_ASSIGN(target_, Party::Make(GetParam(), "target"));
  }
  void TearDown() override {
    peer_.reset();
    target_.reset();
    VerbsDevice::TearDown();
  }
  // A connection that has heard of the ports.
  void Connect() {
    ASSERT_OK_AND_ASSIGN(peer_, RawControl::Dial(target_->backend().Describe().address));
    ASSERT_TRUE(Eventually(kAmple, [&] {
      Turn();
      return peer_->Count<Ports>() == 1;
    }));
  }
  void Turn() {
    target_->Turn();
    if (!peer_->Listen()) over_ = true;
  }
  void Idle(Duration time = milliseconds(20)) {
    const Time end = Now() + time;
    while (Now() < end) Turn();
  }
  bool UntilOver() {
    return Eventually(kAmple, [&] {
      Turn();
      return over_ && link().down;
    });
  }
  template <typename T>
  bool Hears(size_t count) {
    return Eventually(kAmple,
                      [&] {
                        Turn();
                        return peer_->Count<T>() >= count || over_;
                      }) &&
           !over_;
  }
  TestLink& link() { return *target_->links.back(); }
  // Of a queue pair that there is not.
  Offer OfferOf(uint8_t rail, uint32_t life, uint8_t port = 0) {
    const Ports& ports = std::get<Ports>(peer_->heard().front());
    return {.rail = rail,
            .life = life,
            .port = port,
            .from = {.number = 0xfffff, .psn = 1, .reads = 1, .port = ports.ports.at(0)}};
  }

  std::unique_ptr<Party> target_;
  std::unique_ptr<RawControl> peer_;
  bool over_ = false;
};

INSTANTIATE_TEST_SUITE_P(InMemory, HostileVerbs, ::testing::Values(VerbsDeviceFlavour()),
                         FlavourName);

TEST_P(HostileVerbs, StrangersAreToldThePortsAndNothingIsMadeForThem) {
  const uint64_t regions = fabric_->calls(Call::kRegMr);
  const uint64_t queue_pairs = fabric_->calls(Call::kCreateQp);
  std::vector<std::unique_ptr<RawControl>> crowd;
  for (int i = 0; i < 200; ++i) {
    ASSERT_NO_FATAL_FAILURE(Connect());
    for (uint32_t life = 1; life <= 20; ++life) {
      for (uint8_t rail = 0; rail < net::kMaxRails; ++rail) {
        ASSERT_TRUE(peer_->Say(OfferOf(rail, life)));
      }
      Turn();
    }
    crowd.push_back(std::move(peer_));
  }
  peer_ = std::move(crowd.front());
  Idle();
  EXPECT_FALSE(over_);
  EXPECT_EQ(peer_->heard().size(), 1u);
  EXPECT_EQ(fabric_->calls(Call::kRegMr), regions);
  EXPECT_EQ(fabric_->calls(Call::kCreateQp), queue_pairs);
}

TEST_P(HostileVerbs, StrangersMayOfferAndNothingElse) {
  const std::vector<verbs::Blob> misplaced = {Probe{.rail = 0, .life = 1, .nonce = 0},
                                              Probe{.rail = 0, .life = 0, .nonce = 0},
                                              verbs::Quiet{.transfer = 5},
                                              Ports{},
                                              Probed{.rail = 0, .life = 1, .found = true},
                                              Answer{.rail = 0, .life = 1, .error = "no"}};
  for (const verbs::Blob& blob : misplaced) {
    SCOPED_TRACE(blob.index());
    over_ = false;
    ASSERT_NO_FATAL_FAILURE(Connect());
    ASSERT_TRUE(peer_->Say(OfferOf(0, 1)));
    ASSERT_TRUE(peer_->Say(blob));
    ASSERT_TRUE(UntilOver());
    EXPECT_EQ(peer_->heard().size(), 1u);
    EXPECT_TRUE(absl::IsInvalidArgument(link().why)) << link().why;
  }
}

TEST_P(HostileVerbs, AnOfferIsAnsweredOnceAndProbedOnce) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  link().endpoint->Authorize();
  for (uint32_t life = 1; life <= 3; ++life) {
    ASSERT_TRUE(peer_->Say(OfferOf(0, life)));
    ASSERT_TRUE(Hears<Answer>(life));
    ASSERT_TRUE(peer_->Say(Probe{.rail = 0, .life = life, .nonce = 77}));
    ASSERT_TRUE(Hears<Probed>(life));
    EXPECT_FALSE(std::get<Probed>(peer_->heard().back()).found);
  }
  // Of lives that are over nobody is told anything.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(peer_->Say(Probe{.rail = 0, .life = 2, .nonce = 77}));
  Idle();
  EXPECT_FALSE(over_);
  EXPECT_EQ(peer_->Count<Probed>(), 3u);
  ASSERT_TRUE(peer_->Say(Probe{.rail = 0, .life = 3, .nonce = 77}));
  ASSERT_TRUE(UntilOver());
  EXPECT_EQ(peer_->Count<Probed>(), 3u);
}

TEST_P(HostileVerbs, OffersDoNotGoBackAndProbesDoNotRunAhead) {
  for (const bool authorized : {false, true}) {
    over_ = false;
    ASSERT_NO_FATAL_FAILURE(Connect());
    if (authorized) link().endpoint->Authorize();
    ASSERT_TRUE(peer_->Say(OfferOf(3, 9)));
    ASSERT_TRUE(peer_->Say(OfferOf(3, 9)));
    EXPECT_TRUE(UntilOver());
  }
  over_ = false;
  ASSERT_NO_FATAL_FAILURE(Connect());
  link().endpoint->Authorize();
  ASSERT_TRUE(peer_->Say(OfferOf(0, 1)));
  ASSERT_TRUE(peer_->Say(Probe{.rail = 0, .life = 2, .nonce = 77}));
  EXPECT_TRUE(UntilOver());
}

// It asks for answers and does not read them.
TEST_P(HostileVerbs, WhoDoesNotListenIsDisconnected) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  link().endpoint->Authorize();
  constexpr uint32_t kMany = 1'000'000;
  uint32_t said = 0;
  while (said < kMany && !link().down) {
    // Of a port that is not there: quickly answered.
    if (peer_->Say(OfferOf(0, said + 1, 63))) {
      ++said;
      if (said % 64 != 0) continue;
    }
    // One of two turns in a row looks at the sockets. If offers filled them, the kernel would find
    // out first that this peer does not read.
    target_->Turn();
    target_->Turn();
  }
  EXPECT_LT(said, kMany);
  ASSERT_TRUE(link().down);
  EXPECT_TRUE(Fails(link().why, absl::StatusCode::kResourceExhausted, {"does not read"}));
}

// Memory of the accepting side is taken for a peer's first queue pair, and where there is none the
// peer hears why.
TEST_P(HostileVerbs, WithoutMemoryForProbesThePeerIsTold) {
  fabric_->FailCall(Call::kRegMr, 1, ENOMEM);
  ASSERT_NO_FATAL_FAILURE(Connect());
  link().endpoint->Authorize();
  ASSERT_TRUE(peer_->Say(OfferOf(0, 1)));
  ASSERT_TRUE(Hears<Answer>(1));
  EXPECT_NE(std::get<Answer>(peer_->heard().back()).error.find("ulimit -l"), std::string::npos);
  ASSERT_TRUE(peer_->Say(OfferOf(0, 2)));
  ASSERT_TRUE(Hears<Answer>(2));
  EXPECT_EQ(std::get<Answer>(peer_->heard().back()).error, "");
  EXPECT_FALSE(link().down);
}

// What the connecting side registers for probes and flushes is not for peers.
TEST_P(HostileVerbs, WhoConnectsOpensNoMemory) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Party> initiator,
                       Party::Make(GetParam(), "initiator"));
  ASSERT_OK(initiator->Connect(*target_));
  const std::vector<int> rights = fabric_->region_rights();
  ASSERT_FALSE(rights.empty());
  for (const int right : rights) EXPECT_EQ(right, IBV_ACCESS_LOCAL_WRITE);
}

}  // namespace
}  // namespace kvxfer::testing
