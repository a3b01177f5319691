// Leases under random schedules, in which an owner uses blocks again as soon as it is told that it
// may: no fetch takes the bytes of others for those of its lease.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/core/kv/kv_leases.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/kv/leases.h"

namespace kvxfer::testing {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

// An owner with two lists of blocks, each under one lease at a time. The content of a list is a
// number that is never used twice. Fetches read a list twice, some of them not the one that their
// lease is for, some under names that have ended.
class World {
 public:
  static constexpr uint32_t kReaders = 2;

  explicit World(std::mt19937_64* random) : random_(*random) {}

  void Step() {
    List& list = lists_[Below(lists_.size())];
    Fetch& fetch = fetches_[Below(fetches_.size())];
    switch (Below(16)) {
      case 0:
        return Grant(list);
      case 1:
        if (!granted_.empty()) Call(leases_.Renew(AnyName(), now_ + seconds(3), now_));
        return;
      case 2:
        if (!granted_.empty() && Below(4) == 0) Release(AnyName());
        return;
      case 3:
        now_ += seconds(Below(2));
        return;
      case 4:
        return TakeEnded();
      case 5:
        if (Below(4) == 0) return Sweep(fetch.reader);
        if (Below(4) == 0) return GiveUp(fetch);
        return;
      default:
        return FetchStep(list, fetch);
    }
  }

  // Whatever happened before: with time alone everything ends, and is told when the leases say.
  void RunOut() {
    TakeEnded();
    for (int i = 0; i < 10 && leases_.NextExpiry().has_value(); ++i) {
      now_ = std::max(now_, *leases_.NextExpiry());
      TakeEnded();
    }
    EXPECT_EQ(leases_.NextExpiry(), std::nullopt);
    EXPECT_EQ(told_.size(), granted_.size());
    EXPECT_EQ(leases_.granted(), granted_.size());
    for (const KvLeaseEnd end : {kConsumed, kReleased, kExpired}) {
      const auto told = std::ranges::count(told_, end, [](const auto& one) { return one.second; });
      EXPECT_EQ(leases_.count(end), static_cast<uint64_t>(told));
    }
  }

  int confirmed() const { return confirmed_; }
  uint64_t consumed() const { return leases_.count(kConsumed); }

 private:
  struct List {
    uint64_t hash;
    int content;
    std::string lease{};
  };
  struct Granted {
    List* list;
    int content;
    bool released = false;
    std::set<KvLeases::Reader> finished{};
  };
  struct Fetch {
    KvLeases::Reader reader;
    std::string name{};  // empty: there is none
    uint64_t number = 0;
    const List* list = nullptr;
    bool begun = false;  // and not refused
    int first = 0;
    std::optional<int> second{};
  };

  size_t Below(size_t end) { return random_() % end; }
  // Most often one that is held.
  const std::string& AnyName() {
    const std::string& held = lists_[Below(lists_.size())].lease;
    return !held.empty() && Below(4) > 0 ? held : names_[Below(names_.size())];
  }
  bool Call(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || status.code() == kEnded) << status;
    return status.ok();
  }

  void Grant(List& list) {
    if (!granted_.empty() && Below(8) == 0) {
      EXPECT_EQ(leases_.Grant(AnyName(), list.hash, now_ + seconds(2)).code(), kUsed);
    }
    if (!list.lease.empty()) return;
    list.lease = "lease " + std::to_string(granted_.size());
    EXPECT_OK(leases_.Grant(list.lease, list.hash, now_ + seconds(2)));
    granted_[list.lease] = {.list = &list, .content = list.content};
    names_.push_back(list.lease);
  }

  void Release(const std::string& name) {
    if (Call(leases_.Release(name, now_))) granted_.at(name).released = true;
  }

  // Blocks are used again only when the owner is told that their lease has ended.
  void TakeEnded() {
    for (const auto& [name, end] : leases_.End(now_)) {
      EXPECT_TRUE(told_.emplace(name, end).second) << name << " told twice";
      const Granted& granted = granted_.at(name);
      EXPECT_EQ(end, granted.released                      ? kReleased
                     : granted.finished.size() >= kReaders ? kConsumed
                                                           : kExpired);
      List& list = *granted.list;
      EXPECT_EQ(list.lease, name);
      list.lease.clear();
      list.content = ++contents_;
    }
    for (const List& list : lists_) {
      if (list.lease.empty() || std::ranges::any_of(fetches_, [&](const Fetch& fetch) {
            return fetch.begun && fetch.name == list.lease;
          })) {
        continue;
      }
      const Granted& granted = granted_.at(list.lease);
      EXPECT_FALSE(granted.released || granted.finished.size() >= kReaders)
          << list.lease << " is over, and not told of";
    }
  }

  // Reads may begin before Begin is heard.
  void FetchStep(const List& list, Fetch& fetch) {
    if (fetch.name.empty()) return Start(list, fetch);
    switch (Below(3)) {
      case 0:
        return Begin(fetch);
      case 1:
        if (!fetch.second) fetch.second = fetch.list->content;
        return;
      default:
        return Finish(fetch);
    }
  }

  void Start(const List& list, Fetch& fetch) {
    if (granted_.empty()) return;
    fetch.name = AnyName();
    fetch.number = ++numbers_;
    fetch.list = Below(8) == 0 ? &list : granted_.at(fetch.name).list;
    fetch.first = fetch.list->content;
  }

  void Begin(Fetch& fetch) {
    if (fetch.begun) return;
    const std::array<Duration, 5> within = {seconds(0), seconds(1), seconds(2), seconds(3),
                                            hours(1)};
    const absl::Status status =
        leases_.Begin(fetch.name, fetch.list->hash, fetch.reader, fetch.number,
                      within[Below(Below(4) == 0 ? 5 : 4)], now_);
    if (fetch.list != granted_.at(fetch.name).list) {
      EXPECT_EQ(status.code(), kInvalid) << status;
    } else {
      fetch.begun = Call(status);
    }
  }

  void Finish(Fetch& fetch) {
    if (!fetch.second) return;
    if (Call(leases_.Finish(fetch.name, fetch.reader, fetch.number, kReaders, now_))) {
      Granted& granted = granted_.at(fetch.name);
      ++confirmed_;
      granted.finished.insert(fetch.reader);
      EXPECT_TRUE(fetch.begun);
      EXPECT_FALSE(told_.contains(fetch.name));
      EXPECT_EQ(fetch.first, granted.content) << "wrong bytes taken for good ones";
      EXPECT_EQ(fetch.second, granted.content) << "wrong bytes taken for good ones";
    }
    fetch = {.reader = fetch.reader};
  }

  void GiveUp(Fetch& fetch) {
    if (fetch.name.empty()) return;
    leases_.Abandon(fetch.name, fetch.reader, fetch.number, now_);
    fetch = {.reader = fetch.reader};
  }

  void Sweep(KvLeases::Reader reader) {
    leases_.Sweep(reader, now_);
    for (Fetch& fetch : fetches_) {
      if (fetch.reader == reader) fetch = {.reader = reader};
    }
  }

  std::mt19937_64& random_;
  KvLeases leases_;
  Time now_{};
  std::array<List, 2> lists_ = {List{.hash = 0xa, .content = 1}, List{.hash = 0xb, .content = 2}};
  int contents_ = 2;
  std::map<std::string, Granted> granted_;
  std::vector<std::string> names_;
  std::map<std::string, KvLeaseEnd> told_;
  // Reader 1 has two at once.
  std::array<Fetch, 4> fetches_ = {Fetch{.reader = 1}, Fetch{.reader = 1}, Fetch{.reader = 2},
                                   Fetch{.reader = UINT64_MAX}};
  uint64_t numbers_ = 0;
  int confirmed_ = 0;
};

TEST(KvLeases, LongRandomSchedules) {
  std::mt19937_64 random(TestSeed());
  int confirmed = 0;
  uint64_t consumed = 0;
  for (int i = 0; i < Scaled(3'000) && !HasFailure(); ++i) {
    World world(&random);
    for (int step = 0; step < 120; ++step) world.Step();
    world.RunOut();
    confirmed += world.confirmed();
    consumed += world.consumed();
  }
  EXPECT_GT(confirmed, Scaled(3'000));
  EXPECT_GT(consumed, static_cast<uint64_t>(Scaled(300)));
}

}  // namespace
}  // namespace kvxfer::testing
