// Rails that fail alone, at the interface of backends: what went over one is over before it is
// down, fenced at the target before it is used again, and some of it arrived though it failed.

#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kRailOp = 4096;
constexpr size_t kOps = 64;  // places in memory

class BackendRails : public BackendConformance {
 protected:
  // What an agent does at both ends, by messages of one word and a number.
  void Serve() {
    pair_->Turn();
    for (; downs_ < out().rails_down.size(); ++downs_) {
      ASSERT_TRUE(out().Send("fence " + std::to_string(out().rails_down[downs_])));
    }
    for (; asked_ < in().messages.size(); ++asked_) {
      if (!in().messages[asked_].starts_with("fence ")) continue;
      in().FenceRail(static_cast<uint32_t>(std::stoul(in().messages[asked_].substr(6))));
    }
    for (; fenced_ < in().rails_fenced.size(); ++fenced_) {
      const uint32_t rail = in().rails_fenced[fenced_];
      quiet_from_[rail] = in().immediates.size();
      ASSERT_TRUE(in().Send("fenced " + std::to_string(rail)));
    }
    for (; answers_ < out().messages.size(); ++answers_) {
      if (!out().messages[answers_].starts_with("fenced ")) continue;
      const auto rail = static_cast<uint32_t>(std::stoul(out().messages[answers_].substr(7)));
      ++lives_[rail];
      out().endpoint->ReopenRail(rail);
    }
    CheckNothingLate();
  }

  // An immediate names its rail's life and the op: none of an earlier life comes after its fence.
  void CheckNothingLate() {
    for (; checked_ < in().immediates.size(); ++checked_) {
      const uint32_t immediate = in().immediates[checked_];
      const uint32_t rail = immediate >> 28;
      const uint32_t life = immediate >> 20 & 0xff;
      if (immediates_seen_.insert(immediate).second) continue;
      ADD_FAILURE() << "immediate " << immediate << " of rail " << rail << " in life " << life
                    << " came twice";
    }
    for (const auto& [rail, from] : quiet_from_) {
      for (size_t i = from; i < in().immediates.size(); ++i) {
        const uint32_t immediate = in().immediates[i];
        if (immediate >> 28 != rail) continue;
        EXPECT_EQ(immediate >> 20 & 0xff, lives_[rail] & 0xff)
            << "of an earlier life of rail " << rail << ", after its fence";
      }
    }
  }

  // Something can arrive of an op that the initiator is told has failed.
  bool arrives_unheard() const {
    return immediates() && !caps().needs_remote_cpu && caps().rail_keeps_order;
  }

  size_t FailedAndThere() {
    return static_cast<size_t>(std::ranges::count_if(posted_, [&](const auto& op) {
      const auto end = out().ended.find(op.first);
      return end != out().ended.end() && !end->second.ok() && immediates_seen_.contains(op.second);
    }));
  }

  // One op on a rail that is up, if there is room.
  void PostOne() {
    const uint32_t rails = out().rails();
    const auto rail = static_cast<uint32_t>(random_() % rails);
    if (out().down_rails.contains(rail) || !out().rail_up(rail)) return;
    const uint32_t number = static_cast<uint32_t>(out().last_op) & 0xfffff;
    const uint32_t immediate = rail << 28 | (lives_[rail] & 0xff) << 20 | number;
    const uint64_t place = number % kOps * kRailOp;
    const Op op = out().Make(OpKind::kWrite, 1, {RunAt(place, kRailOp)},
                             immediates() ? std::optional(immediate) : std::nullopt, rail);
    if (out().Post(std::span(&op, 1)) == 1) posted_[op.id] = immediate;
  }

  std::map<uint32_t, uint32_t> lives_;     // rail → how often it was reopened
  std::map<uint32_t, size_t> quiet_from_;  // rail → immediates reported before its last fence
  std::map<uint64_t, uint32_t> posted_;    // op → its immediate
  std::set<uint32_t> immediates_seen_;
  size_t downs_ = 0;
  size_t asked_ = 0;
  size_t fenced_ = 0;
  size_t answers_ = 0;
  size_t checked_ = 0;
};

TEST_P(BackendRails, FailAndComeBack) {
  ASSERT_NO_FATAL_FAILURE(Start(kOps * kRailOp));
  Pattern(1).Fill(local_->bytes());
  const int failures = Scaled(100);
  const Time end = Now() + kAmple;
  const auto enough = [&] {
    return out().rails_up.size() >= static_cast<size_t>(failures) &&
           (!arrives_unheard() || FailedAndThere() > 0);
  };
  while (!enough() && Now() < end) {
    for (auto ops = random_() % 8; ops > 0; --ops) PostOne();
    ASSERT_NO_FATAL_FAILURE(Serve());
    ASSERT_FALSE(out().down) << out().why;
  }
  EXPECT_GE(out().rails_up.size(), static_cast<size_t>(failures));
  ASSERT_TRUE(pair_->Until([&] {
    Serve();
    return pair_->AllEnded() && out().down_rails.empty();
  }));
  // Expect every op that succeeded to have arrived, and of those that failed some, not all.
  size_t failed = 0;
  for (const auto& [op, immediate] : posted_) {
    const absl::Status& status = out().ended[op];
    if (!immediates()) continue;
    const auto there = [&, number = immediate] { return immediates_seen_.contains(number); };
    if (status.ok()) {
      EXPECT_TRUE(pair_->Until([&] {
        Serve();
        return there();
      })) << op;
      continue;
    }
    // Internal: what failed before goes to the same place again here, and may be taken to be at
    // fault.
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsInternal(status)) << status;
    ++failed;
  }
  if (!immediates()) return;
  EXPECT_GT(failed, 0u);
  EXPECT_LT(FailedAndThere(), failed);
  if (arrives_unheard()) {
    EXPECT_GT(FailedAndThere(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Rails, BackendRails,
                         ::testing::ValuesIn(RailFlavours(0.05, std::chrono::microseconds(500))),
                         FlavourName);

// Rails that fail by themselves: the fake fabric was told that ops do.
std::vector<Flavour> FailingFlavours() {
  const char* const fake = std::getenv("FAKE_FABRIC");
  const bool failing = fake != nullptr && std::strstr(fake, "errors=") != nullptr;
  return failing ? LibfabricFlavours() : std::vector<Flavour>();
}

INSTANTIATE_TEST_SUITE_P(Failing, BackendRails, ::testing::ValuesIn(FailingFlavours()),
                         FlavourName);

}  // namespace
}  // namespace kvxfer::testing
