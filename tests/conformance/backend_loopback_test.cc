// What only loopback has: the threads of two agents meet in one process's memory.

#include <atomic>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kBytes = 4 << 20;

class Loopback : public BackendConformance {};

INSTANTIATE_TEST_SUITE_P(Plain, Loopback, ::testing::Values(PlainFlavour("Loopback")), FlavourName);

// Writes without end from a thread of its own while the region goes away and comes back.
TEST_P(Loopback, DeregistrationWaitsForTheCopyInProgress) {
  ASSERT_NO_FATAL_FAILURE(Start(kBytes));
  Pattern(1).Fill(local_->bytes());
  Party& target = pair_->target();
  std::atomic<size_t> refused{0};
  PartyThread initiator(&pair_->initiator(), [&] {
    refused = out().failed();
    if (out().open.size() >= 4) return;
    const Op op = out().Make(OpKind::kWrite, 1, {RunAt(0, kBytes / 4)}, 1);
    out().Post(std::span(&op, 1));
  });
  for (int round = 0; round < Scaled(300); ++round) {
    remote_->registration.reset();
    // Expect not one byte after the return: this thread writes without a race, and it stays.
    remote_->memory.Clear();
    const size_t refused_before = refused;
    ASSERT_TRUE(Eventually(kAmple, [&] { return refused > refused_before; }));
    EXPECT_EQ(FirstNonZero(remote_->bytes()), kNoMismatch);
    ASSERT_OK_AND_ASSIGN(remote_->registration, target.backend().Register(remote_->local));
    const size_t before = in().immediates.size();
    ASSERT_TRUE(Eventually(kAmple, [&] {
      target.Turn();
      return in().immediates.size() > before;
    }));
  }
}

// The target's agent and its memory go while its peer is in the midst of copying.
TEST_P(Loopback, ADestroyedAgentIsNotWrittenTo) {
  for (int round = 0; round < Scaled(100); ++round) {
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> a, Party::Make(GetParam(), "a"));
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<Party> b, Party::Make(GetParam(), "b"));
    ASSERT_OK_AND_ASSIGN(TestLink * link, a->Connect(*b));
    ASSERT_OK_AND_ASSIGN(TestRegion * source, a->Register(kBytes));
    ASSERT_OK_AND_ASSIGN(TestRegion * sink, b->Register(kBytes));
    ASSERT_TRUE(Eventually(kAmple, [&] {
      b->Turn();
      return !b->links.empty();
    }));
    b->links.front()->endpoint->Authorize();
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<RemoteKey> key,
                         link->endpoint->Import(sink->remote(), ""));
    const kvxfer::Run run{.local = source->address(),
                          .remote = sink->address(),
                          .bytes = 1 << 20,
                          .registration = source->registration.get(),
                          .key = key.get()};
    link->keys.push_back(std::move(key));
    {
      PartyThread initiator(a.get(), [&] {
        if (link->down || link->open.size() >= 4) return;
        const Op op = link->Make(OpKind::kWrite, 1, {run}, 1);
        link->Post(std::span(&op, 1));
      });
      for (uint64_t turns = random_() % 50; turns > 0; --turns) b->Turn();
      b.reset();  // unmaps the sink: a late copy would crash
      ASSERT_TRUE(
          Eventually(kAmple, [&] { return initiator.WithLock([&] { return link->down; }); }));
    }
    EXPECT_TRUE(absl::IsUnavailable(link->why)) << link->why;
  }
}

TEST_P(Loopback, SaysWhyAPeerIsNotReached) {
  ASSERT_NO_FATAL_FAILURE(Start(4096));
  const Backend& backend = pair_->initiator().backend();
  const std::string address = pair_->target().backend().Describe().address;
  HostIdentity host = pair_->target().host();
  host.pid += 1;
  EXPECT_TRUE(Fails(backend.Reachable(address, host), absl::StatusCode::kUnavailable,
                    {"one process", std::to_string(host.pid).c_str()}));
  // The pid came back after a restart.
  host.pid -= 1;
  host.start_time += 1;
  EXPECT_TRUE(
      Fails(backend.Reachable(address, host), absl::StatusCode::kUnavailable, {"one process"}));
  host = pair_->target().host();
  host.boot_id = "another kernel";
  host.hostname = "far-away";
  EXPECT_TRUE(Fails(backend.Reachable(address, host), absl::StatusCode::kUnavailable,
                    {"one process", "far-away"}));
  host = pair_->target().host();
  EXPECT_TRUE(Fails(backend.Reachable(Incarnation::Random().ToString(), host),
                    absl::StatusCode::kUnavailable, {"destroyed"}));
  EXPECT_TRUE(Fails(backend.Reachable(backend.Describe().address, host),
                    absl::StatusCode::kInvalidArgument, {"itself"}));
}

}  // namespace
}  // namespace kvxfer::testing
