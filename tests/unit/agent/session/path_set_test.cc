// The paths to a peer without a peer: which link a transfer gets, when a path that failed is tried
// again, and what is said of them. The backends connect when the test says so.

#include "src/agent/session/path_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_macros.h"
#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using ::testing::HasSubstr;

class PathSetTest : public ::testing::Test, public FakePaths {
 protected:
  void Fail(Link& link, absl::Status why = absl::UnavailableError("refused")) {
    Paths().OnDown(link, why, now_);
  }

  // The link over a backend; the test fails if there is none.
  Link& Making(size_t backend) {
    std::map<size_t, Link*> made;
    Paths().ForEachLink([&](Link& link) { made[link.backend] = &link; });
    return *made.at(backend);
  }
  std::string NameOf(const absl::StatusOr<Link*>& link) {
    if (!link.ok()) return std::string(link.status().message());
    if (*link == nullptr) return "waits";
    return std::string(runtime_.backends[(*link)->backend]->name());
  }
  std::string Goes(const internal::TransferRecord& record) {
    return NameOf(Paths().LinkFor(record, now_));
  }
};

TEST_F(PathSetTest, TheFirstBackendThatIsUpIsTaken) {
  FakeBackend& verbs = Both("verbs");
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(verbs.dials, 1);
  EXPECT_EQ(tcp.dials, 0);
  Prove(Making(0));
  EXPECT_EQ(Goes(record), "verbs");
  EXPECT_TRUE(Paths().HasReady(""));
  EXPECT_FALSE(Paths().HasReady("tcp"));
  // Expect that what asks for the other one gets it.
  record.options.backend = "tcp";
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_EQ(Paths().links(), 2u);
}

// Data waits until a path is up that carries control frames.
TEST_F(PathSetTest, ControlFramesComeFirst) {
  SetControl(ControlCarrier::kTcp);
  FakeBackend& shm = Both("shm");
  FakeBackend& tcp = Both("tcp");
  shm.capabilities_now().carrier = ControlCarrier::kShm;
  tcp.capabilities_now().carrier = ControlCarrier::kTcp;
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_OK(Paths().CheckCarrier());
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(shm.dials, 0);
  EXPECT_EQ(tcp.dials, 1);
  EXPECT_TRUE(Making(1).carries);
  Prove(Making(1));
  may_speak_ = true;
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(shm.dials, 1);
  EXPECT_FALSE(Making(0).carries);
  Prove(Making(0));
  EXPECT_EQ(Goes(record), "shm");
  EXPECT_EQ(NameOf(Paths().LinkForMessages(now_, now_)), "tcp");
  // Expect that what is dialled to be heard of again carries too.
  Fail(Making(1));
  Fail(Making(0));
  may_speak_ = false;
  now_ += 100 * kTimeout;
  for (int i = 0; i < 3; ++i) Paths().Redial(now_);
  EXPECT_EQ(tcp.dials, 2);
  EXPECT_EQ(shm.dials, 1);
}

TEST_F(PathSetTest, WithoutACarrierThereIsNoPath) {
  SetControl(ControlCarrier::kTcp);
  Both("shm").capabilities_now().carrier = ControlCarrier::kShm;
  FakeBackend& tcp = Both("tcp");
  tcp.capabilities_now().carrier = ControlCarrier::kTcp;
  tcp.reachable = absl::UnavailableError("no route");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  for (const std::string& why : {Goes(record), std::string(Paths().CheckCarrier().message())}) {
    EXPECT_THAT(why, HasSubstr("control = tcp"));
    EXPECT_THAT(why, HasSubstr("decode-0 (shm)"));
  }
  EXPECT_TRUE(absl::IsFailedPrecondition(Paths().CheckCarrier()));
}

TEST_F(PathSetTest, NothingIsDialledUntilTheSessionBeforeIsOver) {
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  may_connect_ = false;
  EXPECT_EQ(Goes(record), "waits");
  Paths().Redial(now_);
  EXPECT_EQ(tcp.dials, 0);
  may_connect_ = true;
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(tcp.dials, 1);
}

TEST_F(PathSetTest, ALaterPathThatWasSeenClearlyFasterIsTakenFirst) {
  Both("verbs");
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(0));
  record.options.backend = "tcp";
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  record.options.backend.clear();
  EXPECT_EQ(Goes(record), "verbs");
  Making(0).seen->OnSmallDone(kMs, now_);
  Making(1).seen->OnSmallDone(kMs / 10, now_);
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_THAT(Paths().Explain(now_).paths[1].why, HasSubstr("taken before verbs"));
  // Expect that a bad minute is forgotten.
  now_ += PathMeasure::kLately + kMs;
  EXPECT_EQ(Goes(record), "verbs");
}

TEST_F(PathSetTest, APathThatFailsGivesWayAndIsNotWaitedFor) {
  FakeBackend& verbs = Both("verbs");
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(0));
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_EQ(verbs.dials, 1);
  // Also not by those that are posted later.
  now_ += 100 * kMs;
  internal::TransferRecord later;
  Plan(later, MemoryKind::kHost);
  EXPECT_EQ(Goes(later), "tcp");
  EXPECT_EQ(verbs.dials, 1);
}

// A network that loses connections may lose the next attempt too. Expect that this fails what waits
// only where nothing else shows that the peer can be reached.
TEST_F(PathSetTest, ALostPathIsTriedOnWhileThePeerIsConnected) {
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  peer_is_connected_ = true;
  // Expect that a path that never carried gets one attempt all the same.
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(0));
  EXPECT_THAT(Goes(record), HasSubstr("unreachable (tcp: refused)"));
  record.posted = now_ += kMs * 20;
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(0));
  Fail(Making(0), absl::UnavailableError("reset"));
  const Time lost = now_;
  for (int attempt = 0; now_ - lost < Session::kAbandonAfter; ++attempt) {
    EXPECT_EQ(Goes(record), "waits");
    EXPECT_EQ(tcp.dials, attempt + 3);
    now_ += kMs;
    Fail(Making(0));
    EXPECT_EQ(Goes(record), "waits");
    EXPECT_LE(Paths().NextTimer(true, now_), now_ + 2 * kTimeout);
    if (attempt == 3) {
      peer_is_connected_ = false;
      EXPECT_THAT(Goes(record), HasSubstr("unreachable (tcp: refused)"));
      peer_is_connected_ = true;
    }
    now_ += 2 * kTimeout;
  }
  EXPECT_THAT(Goes(record), HasSubstr("unreachable (tcp: refused)"));
}

// Expect that a path that was never tried goes first, and that both wait for their rests.
TEST_F(PathSetTest, ALostPathIsTriedOnOnlyWhereNoOtherIsLeft) {
  FakeBackend& verbs = Both("verbs");
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  peer_is_connected_ = true;
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(0));
  Fail(Making(0), absl::UnavailableError("reset"));
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(0));
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(tcp.dials, 1);
  Fail(Making(1));
  now_ += 2 * kTimeout;
  const int dials = verbs.dials;
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(verbs.dials, dials + 1);
  EXPECT_EQ(tcp.dials, 1);
  // Expect that one that fails at once waits for its rest.
  Fail(Making(0));
  verbs.connects = absl::UnavailableError("no device");
  now_ += 2 * kTimeout;
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(verbs.dials, dials + 2);
}

TEST_F(PathSetTest, ALostPathThatIsRefusedForGoodIsNotTriedOn) {
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  peer_is_connected_ = true;
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(0));
  Fail(Making(0), absl::UnavailableError("reset"));
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(0), absl::FailedPreconditionError("another version"));
  EXPECT_THAT(Goes(record), HasSubstr("another version"));
}

TEST_F(PathSetTest, APathThatFailedIsTriedAgainBesideTheOneInUse) {
  FakeBackend& verbs = Both("verbs");
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(0));
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  now_ += 30 * kTimeout - kMs;
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_EQ(verbs.dials, 1);
  now_ += kMs;
  // Expect that nothing waits for it.
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_EQ(verbs.dials, 2);
  Prove(Making(0));
  EXPECT_EQ(Goes(record), "verbs");
  // Expect that its failure is forgotten: lost now, it is dialled at once and waited for.
  Fail(Making(0));
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(verbs.dials, 3);
}

TEST_F(PathSetTest, BackOffDoublesAndEndsWithTheFirstProof) {
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  Paths();
  tcp.connects = absl::UnavailableError("no route");
  Duration waits[2]{};
  for (int failures = 0; failures < 2; ++failures) {
    internal::TransferRecord record;
    Plan(record, MemoryKind::kHost);
    // It fails at once, and is not tried again for this transfer.
    EXPECT_THAT(Goes(record), HasSubstr("no route"));
    EXPECT_THAT(Goes(record), HasSubstr("no route"));
    EXPECT_EQ(tcp.dials, failures + 1);
    const Time again = Paths().NextTimer(true, now_);
    waits[failures] = again - now_;
    EXPECT_EQ(Paths().NextTimer(false, now_), Time::max());
    // One that is posted now waits out the rest.
    now_ += Duration(1);
    internal::TransferRecord waiting;
    Plan(waiting, MemoryKind::kHost);
    EXPECT_EQ(Goes(waiting), "waits");
    EXPECT_EQ(tcp.dials, failures + 1);
    now_ = again;
  }
  // 5 ms and 10 ms, ± 25 %.
  EXPECT_GE(waits[0], 5 * kMs * 3 / 4);
  EXPECT_LE(waits[0], 5 * kMs * 5 / 4);
  EXPECT_GE(waits[1], 10 * kMs * 3 / 4);
  EXPECT_LE(waits[1], 10 * kMs * 5 / 4);
  tcp.connects = absl::OkStatus();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Link& link = Making(0);
  Prove(link);
  link.Close(absl::UnavailableError("cut"));
  Fail(link, absl::UnavailableError("cut"));
  // Expect no rest after the loss of one that had carried data.
  EXPECT_EQ(Paths().NextTimer(true, now_), Time::max());
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(tcp.dials, 4);
}

TEST_F(PathSetTest, ARefusalForNowIsNoFailureOfTheAttempt) {
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Link& link = Making(0);
  link.refused = true;
  Fail(link, absl::UnavailableError("session forgotten"));
  // The transfer waits for the next attempt.
  EXPECT_EQ(Goes(record), "waits");
  now_ = Paths().NextTimer(true, now_);
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(tcp.dials, 2);
}

TEST_F(PathSetTest, MessagesPassBeforeData) {
  Both("verbs");
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Link& verbs = Making(0);
  GoUp(verbs);
  EXPECT_EQ(NameOf(Paths().LinkForMessages(now_, now_)), "verbs");
  EXPECT_EQ(Paths().UpLink(), &verbs);
  EXPECT_FALSE(Paths().HasReady(""));
  EXPECT_EQ(Paths().NextTimer(true, now_), verbs.prove_by);
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(Paths().links(), 1u);
  // Expect that data goes another way once that has taken too long, and the reason is kept.
  now_ = verbs.prove_by;
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_THAT(std::string(Paths().Unreachable("verbs").message()),
              HasSubstr("verbs: connected, a wire"));
  // It is as good as before as soon as data passes.
  Paths().OnProven(verbs);
  EXPECT_EQ(Goes(record), "verbs");
}

TEST_F(PathSetTest, WhereThereIsNoOtherPathARailIsWaitedForHoweverLate) {
  Both("verbs");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  GoUp(Making(0));
  now_ = Making(0).prove_by;
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(Goes(record), "waits");
  // Expect that nothing is due for that.
  EXPECT_EQ(Paths().NextTimer(true, now_), Time::max());
}

TEST_F(PathSetTest, WhereNothingIsLeftToConnectWithThePeerIsNotLost) {
  FakeBackend& verbs = Both("verbs");
  FakeBackend& tcp = Both("tcp");
  MakeRegions();
  Paths();
  verbs.connects = absl::ResourceExhaustedError("no queue pair left");
  tcp.connects = absl::ResourceExhaustedError("no descriptor left");
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_TRUE(Fails(Paths().LinkFor(record, now_), absl::StatusCode::kResourceExhausted,
                    {"peer decode-0 on host there cannot be connected to (verbs: no queue pair "
                     "left; tcp: no descriptor left)"}));
  tcp.connects = absl::UnavailableError("no route");
  now_ += kTimeout;
  internal::TransferRecord later;
  Plan(later, MemoryKind::kHost);
  EXPECT_TRUE(Fails(Paths().LinkFor(later, now_), absl::StatusCode::kUnavailable,
                    {"is unreachable (verbs: no queue pair left; tcp: no route)"}));
}

TEST_F(PathSetTest, APeerThatRestartedSaysWhatToDo) {
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(0), absl::FailedPreconditionError("restarted: add the new metadata"));
  EXPECT_TRUE(Fails(Paths().LinkFor(record, now_), absl::StatusCode::kFailedPrecondition,
                    {"peer decode-0: restarted: add the new metadata"}));
}

TEST_F(PathSetTest, BackendsThatDoNotReachThePeerAreNeverDialled) {
  FakeBackend& shm = Both("shm");
  Both("tcp");
  Here("ucx");
  shm.reachable = absl::UnavailableError("on another host");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  EXPECT_EQ(shm.dials, 0);
  EXPECT_OK(Paths().CheckReachable({}));
  EXPECT_TRUE(Fails(Paths().CheckReachable({"shm"}), absl::StatusCode::kFailedPrecondition,
                    {"cannot be reached over a required backend (shm): shm: on another host"}));
  record.options.backend = "ucx";
  EXPECT_EQ(Goes(record),
            "peer decode-0 on host there is unreachable (backend ucx is not offered by both "
            "sides)");
}

TEST_F(PathSetTest, ThePathsRestIsOverForRedial) {
  FakeBackend& verbs = Both("verbs");
  FakeBackend& tcp = Both("tcp");
  verbs.connects = absl::UnavailableError("no route");
  Paths().Redial(now_);
  EXPECT_EQ(verbs.dials, 1);
  EXPECT_EQ(tcp.dials, 1);
  Paths().Redial(now_);
  EXPECT_EQ(verbs.dials, 1);
  EXPECT_EQ(tcp.dials, 1);
}

TEST_F(PathSetTest, GpuMemoryTakesThePathThatReachesItAtBothEnds) {
  Both("tcp");
  Both("cuda_ipc", kCudaOnly);
  MakeRegions({"cuda_ipc"});
  internal::TransferRecord record;
  Plan(record, MemoryKind::kCuda);
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  EXPECT_EQ(Goes(record), "cuda_ipc");
  EXPECT_FALSE(Paths().Stages(Making(1), record));
  // Host memory does not go there.
  internal::TransferRecord host;
  Plan(host, MemoryKind::kHost);
  EXPECT_EQ(Goes(host), "waits");
  Prove(Making(0));
  EXPECT_EQ(Goes(host), "tcp");
}

TEST_F(PathSetTest, GpuMemoryThatNoPathReachesIsStaged) {
  Both("tcp");
  MakeRegions();
  MakeStaging();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kCuda);
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(0));
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_TRUE(Paths().Stages(Making(0), record));
  const Explanation explained = Paths().Explain(now_);
  ASSERT_EQ(explained.memory.size(), 4u);
  const MemoryExplanation& both = explained.memory[3];
  EXPECT_EQ(both.backend, "tcp");
  EXPECT_TRUE(both.staged);
  EXPECT_THAT(both.why, HasSubstr("tcp does not take either side's memory"));
}

TEST_F(PathSetTest, MemoryBeyondReachIsStagedUntilNewerMetadata) {
  Both("tcp");
  Both("cuda_ipc", kCudaOnly);
  MakeRegions({"cuda_ipc"});
  MakeStaging();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kCuda);
  EXPECT_EQ(Goes(record), "waits");
  Link& native = Making(1);
  Prove(native);
  EXPECT_OK(PathSet::WhyBeyond(native, record));
  // A key that the backend cannot use.
  EXPECT_FALSE(native.KeyOf(regions_, kCudaRegion, *runtime_.backends[1]).ok());
  EXPECT_TRUE(
      Fails(PathSet::WhyBeyond(native, record), absl::StatusCode::kUnimplemented, {"no keys"}));
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(0));
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_TRUE(Paths().Stages(Making(0), record));
  Paths().OnMetadata();
  EXPECT_EQ(Goes(record), "cuda_ipc");
}

TEST_F(PathSetTest, ANativePathThatFailedGivesWayToAStagedOneThatIsReady) {
  Both("tcp");
  FakeBackend& native = Both("cuda_ipc", kCudaOnly);
  MakeRegions({"cuda_ipc"});
  MakeStaging();
  internal::TransferRecord host;
  Plan(host, MemoryKind::kHost);
  EXPECT_EQ(Goes(host), "waits");
  Prove(Making(0));
  internal::TransferRecord record;
  Plan(record, MemoryKind::kCuda);
  // Expect that the native one is waited for, though the other is ready.
  EXPECT_EQ(Goes(record), "waits");
  Fail(Making(1));
  EXPECT_EQ(Goes(record), "tcp");
  now_ += 30 * kTimeout;
  EXPECT_EQ(Goes(record), "tcp");
  EXPECT_EQ(native.dials, 2);
  Prove(Making(1));
  EXPECT_EQ(Goes(record), "cuda_ipc");
}

TEST_F(PathSetTest, GpuMemoryThatCannotBeStagedSaysAtWhichEnd) {
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kCuda);
  EXPECT_TRUE(Fails(Paths().LinkFor(record, now_), absl::StatusCode::kFailedPrecondition,
                    {"peer decode-0: no backend takes this GPU memory at both ends, and it cannot "
                     "be staged: this agent has none"}));
}

TEST_F(PathSetTest, ExplainNamesTheChosenPathAndWhyNotTheOthers) {
  FakeBackend& shm = Both("shm");
  Both("verbs");
  Both("tcp");
  Here("ucx");
  shm.reachable = absl::UnavailableError("on another host");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Prove(Making(1));
  Explanation explained = Paths().Explain(now_);
  ASSERT_EQ(explained.paths.size(), 4u);
  EXPECT_EQ(explained.peer, "decode-0");
  EXPECT_EQ(explained.paths[0].why, "on another host");
  EXPECT_FALSE(explained.paths[0].usable);
  EXPECT_TRUE(explained.paths[1].chosen);
  EXPECT_TRUE(explained.paths[1].connected);
  EXPECT_EQ(explained.paths[1].why, "a wire");
  ASSERT_EQ(explained.paths[1].each_rail.size(), 1u);
  EXPECT_TRUE(explained.paths[1].each_rail[0].up);
  EXPECT_EQ(explained.paths[2].why, "not connected yet: connects with the first transfer");
  EXPECT_EQ(explained.paths[3].why, "the peer does not offer this backend");
  // What is lost is not usable any more.
  Link& verbs = Making(1);
  EXPECT_TRUE(verbs.rails.OnDown(0, absl::UnavailableError("cable"), now_));
  explained = Paths().Explain(now_ + 5 * kMs);
  EXPECT_EQ(explained.paths[1].each_rail[0].down_for, 5 * kMs);
  EXPECT_EQ(explained.paths[1].each_rail[0].why, "cable");
  Fail(verbs, absl::UnavailableError("cut"));
  explained = Paths().Explain(now_);
  EXPECT_EQ(explained.paths[1].why, "cut");
  EXPECT_TRUE(explained.paths[2].chosen);
}

TEST_F(PathSetTest, AClosingLinkIsWaitedForByNobody) {
  Both("tcp");
  MakeRegions();
  internal::TransferRecord record;
  Plan(record, MemoryKind::kHost);
  EXPECT_EQ(Goes(record), "waits");
  Link& link = Making(0);
  EXPECT_LT(Paths().NextTimer(false, now_), Time::max());
  link.Close(absl::UnavailableError("enough"));
  link.Close(absl::UnavailableError("twice"));
  EXPECT_EQ(static_cast<FakeEndpoint&>(*link.endpoint).shut.message(), "enough");
  EXPECT_EQ(Paths().NextTimer(false, now_), Time::max());
  EXPECT_EQ(Paths().UpLink(), nullptr);
}

}  // namespace
}  // namespace kvxfer::testing
