// What the fake fabric does beyond the contract: what it is there for.
#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "tests/fabric/pair.h"

namespace kvxfer::testing {
namespace {

// The preset of this run with more settings, for sides that are opened while it lives.
class MoreSettings {
 public:
  explicit MoreSettings(const std::string& more) : before_(std::getenv("FAKE_FABRIC")) {
    setenv("FAKE_FABRIC", absl::StrCat(before_, ",", more).c_str(), 1);
  }
  ~MoreSettings() { setenv("FAKE_FABRIC", before_.c_str(), 1); }
  MoreSettings(const MoreSettings&) = delete;
  MoreSettings& operator=(const MoreSettings&) = delete;

 private:
  const std::string before_;
};

// A pair with more settings.
class FakePair : public FabricPair {
 public:
  void TestBody() override {}
  using FabricPair::AllEnded;
  using FabricPair::HasData;
  using FabricPair::initiator;
  using FabricPair::Insist;
  using FabricPair::Linger;
  using FabricPair::peer;
  using FabricPair::Put;
  using FabricPair::Step;
  using FabricPair::TakeErrors;
  using FabricPair::target;
  using FabricPair::Until;
};

bool KeepsOrder() { return std::string(std::getenv("FAKE_FABRIC")).starts_with("ordered"); }

size_t CountOf(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(getpagesize());
}

TEST(FakeFabric, EndpointsAreCheap) {
  constexpr size_t kEndpoints = 4096;
  FakePair pair;
  Memory from(&pair.initiator, 64);
  Memory to(&pair.target, 64);
  const size_t fds = CountOf("/proc/self/fd");
  const size_t threads = CountOf("/proc/self/task");
  const size_t resident = ResidentBytes();
  std::vector<Fid<fid_ep>> endpoints;
  for (size_t i = 0; i < kEndpoints; ++i) endpoints.push_back(pair.target.NewEndpoint());
  const size_t each = (ResidentBytes() - resident) / kEndpoints;
  EXPECT_LT(each, kSanitized ? 65536u : 4096u);
  EXPECT_EQ(CountOf("/proc/self/fd"), fds);
  EXPECT_EQ(CountOf("/proc/self/task"), threads);
  // Each is there.
  for (size_t i = 0; i < kEndpoints; ++i) {
    const fi_addr_t peer = pair.initiator.Insert(Side::NameOf(endpoints[i].get()));
    const Write write = {.has_data = pair.HasData(), .data = i};
    ASSERT_EQ(pair.Insist([&] { return pair.initiator.Post(peer, &from, to.remote(), write); }), 0);
  }
  ASSERT_TRUE(pair.AllEnded());
  EXPECT_EQ(pair.TakeErrors(), 0);
  EXPECT_TRUE(
      pair.Until([&] { return pair.target.arrived.size() == (pair.HasData() ? kEndpoints : 0); }));
}

TEST(FakeFabric, AnAddressDiesWithItsEndpoint) {
  FakePair pair;
  Memory from(&pair.initiator, 64);
  Memory to(&pair.target, 64);
  Fid<fid_ep> endpoint = pair.target.NewEndpoint();
  const std::string name = Side::NameOf(endpoint.get());
  EXPECT_EQ(name.size(), 32u);
  const fi_addr_t peer = pair.initiator.Insert(name);
  ASSERT_EQ(pair.initiator.Post(peer, &from, to.remote(), {}), 0);
  ASSERT_TRUE(pair.AllEnded());
  EXPECT_EQ(pair.TakeErrors(), 0);
  endpoint = nullptr;
  endpoint = pair.target.NewEndpoint();
  EXPECT_NE(Side::NameOf(endpoint.get()), name);
  ASSERT_EQ(pair.initiator.Post(peer, &from, to.remote(), {}), 0);
  ASSERT_TRUE(pair.AllEnded());
  EXPECT_EQ(pair.TakeErrors(), 1);
}

TEST(FakeFabric, PostsAreRefusedWithoutCause) {
  const MoreSettings settings("eagain=0.7");
  FakePair pair;
  Memory from(&pair.initiator, 4096);
  Memory to(&pair.target, 4096);
  Pattern(1).Fill(from.bytes());
  int refused = 0;
  for (size_t i = 0; i < 512; ++i) {
    const Write write = {.from = 8 * i, .to = 8 * i, .bytes = 8};
    ASSERT_EQ(pair.Insist([&] {
      const ssize_t result = pair.initiator.Post(pair.peer, &from, to.remote(), write);
      refused += result == -FI_EAGAIN ? 1 : 0;
      return result;
    }),
              0);
  }
  ASSERT_TRUE(pair.AllEnded());
  EXPECT_EQ(pair.TakeErrors(), 0);
  EXPECT_GT(refused, 200);
  EXPECT_EQ(Pattern(1).Mismatch(to.bytes()), kNoMismatch);
}

// Some never land, some have landed, and some land after they were said to have failed.
TEST(FakeFabric, OpsFailInEveryWay) {
  const MoreSettings settings("errors=0.4,late=300000");
  constexpr size_t kBytes = 4096;
  constexpr size_t kWrites = 400;
  FakePair pair;
  Memory from(&pair.initiator, kBytes * kWrites);
  Memory to(&pair.target, kBytes * kWrites);
  Pattern(1).Fill(from.bytes());
  std::map<uint64_t, size_t> at;
  std::vector<size_t> failed, failed_and_absent;
  const auto received = [&](size_t offset) {
    return Pattern(1).Mismatch(Part(to, offset, kBytes), offset) == kNoMismatch;
  };
  size_t ended = 0;
  const auto look = [&] {
    ended += pair.initiator.ended.size();
    for (const Ended& e : pair.initiator.ended) {
      if (e.error == 0) {
        EXPECT_TRUE(received(at[e.op]));
        continue;
      }
      failed.push_back(at[e.op]);
      if (!received(at[e.op])) failed_and_absent.push_back(at[e.op]);
    }
    pair.initiator.ended.clear();
  };
  for (size_t i = 0; i < kWrites; ++i) {
    const Write write = {.from = i * kBytes, .to = i * kBytes, .bytes = kBytes};
    ASSERT_EQ(pair.Insist([&] {
      look();
      return pair.initiator.Post(pair.peer, &from, to.remote(), write);
    }),
              0);
    at[pair.initiator.last_op()] = write.to;
  }
  ASSERT_TRUE(pair.Until([&] {
    look();
    return pair.initiator.outstanding() == 0;
  }));
  look();
  EXPECT_EQ(ended, kWrites);
  EXPECT_GT(failed.size(), kWrites / 10);
  EXPECT_LT(failed.size(), kWrites * 9 / 10);
  EXPECT_LT(failed_and_absent.size(), failed.size());
  const auto late = [&] {
    return static_cast<size_t>(
        std::count_if(failed_and_absent.begin(), failed_and_absent.end(), received));
  };
  EXPECT_TRUE(pair.Until([&] { return late() > 0; }));
  EXPECT_LT(late(), failed_and_absent.size());
}

TEST(FakeFabric, OrderIsWhatThePresetSays) {
  constexpr size_t kWrites = 500;
  FakePair pair;
  Memory from(&pair.initiator, 64);
  Memory to(&pair.target, 64);
  for (size_t i = 0; i < kWrites; ++i) {
    const Write write = {.bytes = 64, .has_data = pair.HasData(), .data = i};
    ASSERT_EQ(pair.Put(&from, to, write), 0);
  }
  ASSERT_TRUE(pair.AllEnded());
  ASSERT_TRUE(
      pair.Until([&] { return pair.target.arrived.size() == (pair.HasData() ? kWrites : 0); }));
  const auto by_op = [](const Ended& a, const Ended& b) { return a.op < b.op; };
  EXPECT_EQ(std::is_sorted(pair.initiator.ended.begin(), pair.initiator.ended.end(), by_op),
            KeepsOrder());
  if (!pair.HasData()) return;
  EXPECT_EQ(std::is_sorted(pair.target.arrived.begin(), pair.target.arrived.end()), KeepsOrder());
}

// Only FI_DELIVERY_COMPLETE says that the bytes are there.
TEST(FakeFabric, ACompletionComesBeforeTheBytes) {
  const MoreSettings settings("early=1,delay=200000");
  constexpr size_t kBytes = 4096;
  constexpr size_t kWrites = 64;
  FakePair pair;
  Memory from(&pair.initiator, kBytes * kWrites);
  Memory to(&pair.target, kBytes * kWrites);
  Pattern(1).Fill(from.bytes());
  std::map<uint64_t, size_t> at;
  int early = 0;
  const auto look = [&] {
    for (const Ended& e : pair.initiator.ended) {
      EXPECT_EQ(e.error, 0);
      early += Pattern(1).Mismatch(Part(to, at[e.op], kBytes), at[e.op]) != kNoMismatch ? 1 : 0;
    }
    pair.initiator.ended.clear();
  };
  for (size_t i = 0; i < kWrites; ++i) {
    const Write write = {.from = i * kBytes, .to = i * kBytes, .bytes = kBytes, .flags = 0};
    ASSERT_EQ(pair.Insist([&] {
      look();
      return pair.initiator.Post(pair.peer, &from, to.remote(), write);
    }),
              0);
    at[pair.initiator.last_op()] = write.to;
  }
  ASSERT_TRUE(pair.Until([&] {
    look();
    return pair.initiator.outstanding() == 0;
  }));
  look();
  // The source is the application's at the completion.
  std::fill(from.bytes().begin(), from.bytes().end(), kPoison);
  EXPECT_GT(early, 0);
  EXPECT_TRUE(pair.Until([&] { return Pattern(1).Mismatch(to.bytes()) == kNoMismatch; }));
}

// Sleeps until there may be something; false: nothing woke it.
bool SleepOn(const Side& side) {
  fid* cq = &side.cq()->fid;
  if (fi_trywait(side.fabric(), &cq, 1) == -FI_EAGAIN) return true;
  int fd = -1;
  EXPECT_EQ(fi_control(cq, FI_GETWAIT, &fd), 0);
  pollfd waiting = {fd, POLLIN, 0};
  return poll(&waiting, 1, static_cast<int>(Milliseconds(kAmple))) == 1;
}

TEST(FakeFabric, WhoSleepsIsWoken) {
  for (const char* const progress : {"progress=auto,wait=fd", "progress=manual,wait=fd"}) {
    const MoreSettings settings(progress);
    Side initiator(FI_WAIT_FD);
    Side target(FI_WAIT_FD);
    const fi_addr_t peer = initiator.Insert(target.name());
    Memory from(&initiator, 64);
    Memory to(&target, 64);
    const bool data = initiator.info().domain_attr->cq_data_size > 0;
    for (uint64_t i = 0; i < 100; ++i) {
      const Write write = {.bytes = 64, .has_data = data, .data = i};
      ASSERT_EQ(initiator.Post(peer, &from, to.remote(), write), 0);
      for (initiator.Poll(); initiator.outstanding() > 0; initiator.Poll()) {
        ASSERT_TRUE(SleepOn(initiator)) << progress;
      }
      for (target.Poll(); data && target.arrived.size() <= i; target.Poll()) {
        ASSERT_TRUE(SleepOn(target)) << progress;
      }
    }
  }
}

TEST(FakeFabric, EachDeviceIsAnAnswer) {
  const MoreSettings settings("devices=3");
  Info found;
  ASSERT_EQ(GetInfo(*Hints(), &found), 0);
  std::set<std::string> names;
  std::set<int> buses;
  for (const fi_info* info = found.get(); info != nullptr; info = info->next) {
    names.insert(info->domain_attr->name);
    buses.insert(info->nic->bus_attr->attr.pci.bus_id);
  }
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(buses.size(), 3u);
}

TEST(FakeFabric, AModeIsAskedFor) {
  const MoreSettings settings("context2=1");
  const Info hints = Hints();
  Info found;
  ASSERT_EQ(GetInfo(*hints, &found), 0);
  EXPECT_EQ(found->mode, FI_CONTEXT2);
  hints->mode = 0;
  EXPECT_EQ(GetInfo(*hints, &found), -FI_ENODATA);
}

TEST(FakeFabric, WhatIsUsedIsNotClosed) {
  FakePair pair;
  EXPECT_EQ(fi_close(&pair.target.domain()->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&pair.target.cq()->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&pair.target.fabric()->fid), -FI_EBUSY);
}

TEST(FakeFabricDeathTest, WhatIsNotUnderstoodEndsTheProcess) {
  for (const char* const wrong : {"no_such_preset", "eagain=2", "tx=many", "mr_mode=everything",
                                  "wait=fd,progress=both", "iov=9"}) {
    EXPECT_DEATH(
        {
          setenv("FAKE_FABRIC", wrong, 1);
          Info found;
          GetInfo(*Hints(), &found);
        },
        "not understood")
        << wrong;
  }
}

}  // namespace
}  // namespace kvxfer::testing
