// Each verbs call made to fail, wherever it stands in the life of an agent: everything ends, with
// words, and nothing is left.

#include <cstdio>

#include "tests/conformance/verbs_device.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

// What a device refuses to let go stays with it.
bool LetsGo(Call call) {
  switch (call) {
    case Call::kClose:
    case Call::kDeallocPd:
    case Call::kDeregMr:
    case Call::kDestroyChannel:
    case Call::kDestroyCq:
    case Call::kDestroySrq:
    case Call::kDestroyQp:
      return true;
    default:
      return false;
  }
}

// Made as often as somebody looks, or once for each of many like entries: some stand for all.
bool Samples(Call call) {
  return call == Call::kQueryGid || call == Call::kPollCq || call == Call::kReqNotify ||
         call == Call::kNextCqEvent || call == Call::kNextAsyncEvent;
}

// Time enough for a rail to come back that can.
constexpr Duration kPatience = milliseconds(150);

class VerbsFaults : public VerbsDevice {
 protected:
  // An initiator and a target from their making to their end: registration, connection, writes and
  // reads, a fence, a rail that is lost and reopened. False: it did not come to that.
  bool Life() {
    absl::StatusOr<std::unique_ptr<Party>> a = Party::Make(GetParam(), "initiator");
    absl::StatusOr<std::unique_ptr<Party>> b = Party::Make(GetParam(), "target");
    if (!Said(a.status()) || !Said(b.status())) return false;
    initiator_ = a->get();
    target_ = b->get();
    const absl::StatusOr<TestRegion*> source = initiator_->Register(64 * kOp);
    const absl::StatusOr<TestRegion*> sink = target_->Register(64 * kOp);
    const absl::StatusOr<TestLink*> link = initiator_->Connect(*target_);
    const bool registered = Said(source.status()) && Said(sink.status());
    if (!Said(link.status())) return false;
    link_ = *link;
    const bool whole = registered && Work(**source, **sink);
    EndLink();
    return whole;
  }
  bool Work(TestRegion& source, TestRegion& sink) {
    if (!Until([&] { return !target_->links.empty() && link_->connected; })) return false;
    target_->links.front()->endpoint->Authorize();
    if (!Until([&] { return Up(); })) return false;
    auto key = link_->endpoint->Import(sink.remote(), sink.registration->key);
    if (!Said(key.status())) return false;
    link_->keys.push_back(*std::move(key));
    if (!Move(source, sink, 1)) return false;
    TestLink& in = *target_->links.front();
    link_->Fence(1);
    in.Fence(1);
    if (!Until([&] { return link_->fenced.contains(1) && in.fenced.contains(1); })) return false;
    if (!Until([&] { return Up(); })) return false;
    fabric_->SetPort("t0", 1, false);
    const size_t lost = link_->rails_down.size();
    if (!Until([&] { return link_->rails_down.size() > lost; })) return false;
    fabric_->SetPort("t0", 1, true);
    return Until([&] { return Up(); }) && Move(source, sink, 2);
  }
  // Some of each kind; those that a rail took with it are over too.
  bool Move(TestRegion& source, TestRegion& sink, uint64_t transfer) {
    std::vector<Op> ops;
    for (uint32_t i = 0; i < 6; ++i) {
      ops.push_back(link_->Make(i % 2 == 0 ? OpKind::kWrite : OpKind::kRead, transfer,
                                {{.local = source.address() + i * kOp,
                                  .remote = sink.address() + i * kOp,
                                  .bytes = kOp,
                                  .registration = source.registration.get(),
                                  .key = link_->keys.front().get()}},
                                i % 2 == 0 ? std::optional(i) : std::nullopt));
    }
    std::span<const Op> rest = ops;
    return Until([&] {
      rest = rest.subspan(link_->Post(rest));
      return rest.empty() && link_->open.empty();
    });
  }
  bool GivenUp() const {
    return link_->connected && !Up() && link_->open.empty() &&
           link_->path().find("not in use: ") != std::string::npos;
  }
  bool Up() const {
    for (uint32_t rail = 0; rail < link_->rails(); ++rail) {
      if (!link_->rail_up(rail)) return false;
    }
    return link_->rails() > 0;
  }
  // False: it went down, or has no rail any more, says why, and holds no op. Every wait ends.
  bool Until(const std::function<bool()>& done) {
    bool is = false;
    const Time begun = Now();
    EXPECT_TRUE(Eventually(kAmple,
                           [&] {
                             Turn();
                             return link_->down || (is = done()) ||
                                    (Now() - begun > kPatience && GivenUp());
                           }))
        << "it hangs: " << link_->path();
    return is && !link_->down;
  }
  // As agents do, rails that went down are fenced and reopened.
  void Turn() {
    initiator_->Turn();
    target_->Turn();
    while (reopened_ < link_->rails_down.size() && !target_->links.empty()) {
      const uint32_t rail = link_->rails_down[reopened_];
      TestLink& in = *target_->links.front();
      if (in.down) return;
      const size_t fenced = in.rails_fenced.size();
      if (!in.fencing_rails.contains(rail) && fence_asked_ == reopened_) {
        in.FenceRail(rail);
        ++fence_asked_;
      }
      if (fenced <= reopened_) return;
      link_->endpoint->ReopenRail(rail);
      ++reopened_;
    }
    initiator_->backend().Arm();
    target_->backend().Arm();
  }
  void EndLink() {
    if (!link_->down) link_->endpoint->Shutdown(absl::CancelledError("over"));
    EXPECT_TRUE(Eventually(kAmple, [&] {
      initiator_->Turn();
      target_->Turn();
      return link_->down;
    }));
    EXPECT_TRUE(link_->open.empty());
    EXPECT_FALSE(link_->why.message().empty());
    for (const auto& [op, how] : link_->ended) Said(how);
  }
  // Whether it is OK; what is not says why.
  static bool Said(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || status.message().size() > 10) << status;
    return status.ok();
  }
  void Begin() {
    initiator_ = target_ = nullptr;
    link_ = nullptr;
    reopened_ = fence_asked_ = 0;
    fabric_ = std::make_unique<VerbsFabric>(Devices(1, 1));
    fabric_->SetRetryTime(milliseconds(20));
    scope_.emplace(fabric_.get());
  }

  Party* initiator_ = nullptr;
  Party* target_ = nullptr;
  TestLink* link_ = nullptr;
  size_t reopened_ = 0;     // of its rails_down
  size_t fence_asked_ = 0;  // of those
};

INSTANTIATE_TEST_SUITE_P(InMemory, VerbsFaults,
                         ::testing::Values(VerbsDeviceFlavour(), VerbsCudaFlavour()), FlavourName);

TEST_P(VerbsFaults, EveryCallMayFail) {
  constexpr auto kCalls = static_cast<size_t>(Call::kCount);
  std::vector<uint64_t> counts(kCalls);
  Begin();
  ASSERT_TRUE(Life());
  for (size_t c = 0; c < kCalls; ++c) counts[c] = fabric_->calls(static_cast<Call>(c));
  ASSERT_EQ(fabric_->live_objects(), 0u);
  const bool of_gpu = GetParam().memory == MemoryType::kCuda;
  size_t lives = 0;
  size_t whole = 0;
  for (size_t c = 0; c < kCalls; ++c) {
    const auto call = static_cast<Call>(c);
    // The others are the same whose memory it is.
    if (of_gpu && call != Call::kRegDmabufMr && call != Call::kDeregMr) continue;
    EXPECT_EQ(counts[c] > 0, of_gpu || call != Call::kRegDmabufMr) << CallName(call);
    for (uint64_t n = 1; n <= counts[c]; n += Samples(call) ? 1 + n / 4 : kSlow ? 1 + n / 8 : 1) {
      SCOPED_TRACE(std::string(CallName(call)) + " " + std::to_string(n));
      Begin();
      fabric_->FailCall(call, n, ENOMEM);
      whole += Life();
      ++lives;
      EXPECT_EQ(fabric_->overruns(), 0u);
      EXPECT_TRUE(LetsGo(call) || fabric_->live_objects() == 0) << fabric_->live_objects();
    }
  }
  std::printf("%zu calls failed, %zu lives went on to their end\n", lives, whole);
  Begin();  // what could not be let go is the last device's
}

}  // namespace
}  // namespace kvxfer::testing
