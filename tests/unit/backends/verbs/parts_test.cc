// The pure parts of the verbs backend: GIDs, pairs, what the sides say, errors, accounting.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kvxfer/backend.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/pairs.h"
#include "src/backends/verbs/port.h"
#include "src/backends/verbs/send_queue.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::verbs {
namespace {

using ::kvxfer::testing::Fails;
using ::testing::HasSubstr;

std::vector<ibv_gid_entry> Table(const kvxfer::testing::FabricPort& port) {
  std::vector<ibv_gid_entry> out;
  for (const auto& gid : port.gids) {
    ibv_gid_entry entry{};
    entry.gid = gid.gid;
    entry.gid_index = gid.index;
    entry.gid_type = gid.type;
    out.push_back(entry);
  }
  return out;
}

TEST(VerbsGid, OfRoceTheMappedAddressOfVersionTwoIsTaken) {
  const std::vector<ibv_gid_entry> table = Table(kvxfer::testing::RocePort(3, 4));
  EXPECT_EQ(*ChooseGid(table, IBV_LINK_LAYER_ETHERNET, -1), 5u);
  EXPECT_EQ(*ChooseGid(table, IBV_LINK_LAYER_ETHERNET, 1), 1u);
  // Version 1, a hole, beyond the end: expect to be told which there are.
  for (const int wanted : {0, 3, 4, 99}) {
    EXPECT_TRUE(Fails(ChooseGid(table, IBV_LINK_LAYER_ETHERNET, wanted),
                      absl::StatusCode::kNotFound, {"10.77.3.4", "5", "KVXFER_VERBS_GID_INDEX"}));
  }
}

TEST(VerbsGid, EmptyEntriesAndTablesAreNotTaken) {
  std::vector<ibv_gid_entry> table = Table(kvxfer::testing::RocePort(3, 4));
  table.back().gid = {};
  EXPECT_EQ(*ChooseGid(table, IBV_LINK_LAYER_ETHERNET, -1), 1u);
  EXPECT_TRUE(Fails(ChooseGid({}, IBV_LINK_LAYER_ETHERNET, -1), absl::StatusCode::kNotFound,
                    {"IP address"}));
  EXPECT_EQ(*ChooseGid(Table(kvxfer::testing::InfinibandPort(7)), IBV_LINK_LAYER_INFINIBAND, -1),
            0u);
}

TEST(VerbsPort, MtuIsTheLargestThatFits) {
  EXPECT_EQ(MtuFromBytes(1500), IBV_MTU_1024);
  EXPECT_EQ(MtuFromBytes(9000), IBV_MTU_4096);
  EXPECT_EQ(MtuBytes(IBV_MTU_2048), 2048u);
}

PortInfo PortAt(std::string name, uint8_t subnet, uint8_t host, std::string fabric = {}) {
  PortInfo port{.name = std::move(name), .fabric = std::move(fabric)};
  port.link_layer = IBV_LINK_LAYER_ETHERNET;
  port.mtu = IBV_MTU_4096;
  const auto gid = kvxfer::testing::RocePort(subnet, host).gids.back().gid;
  std::memcpy(port.gid.data(), gid.raw, port.gid.size());
  return port;
}

std::vector<PortInfo> Row(const char* name, int count, uint8_t first) {
  std::vector<PortInfo> out;
  out.reserve(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) {
    out.push_back(PortAt(name + std::to_string(i), 1, static_cast<uint8_t>(first + i)));
  }
  return out;
}

TEST(VerbsPairs, EveryPortIsUsedAndNoneMoreThanNeeded) {
  for (int local = 1; local <= 8; ++local) {
    for (int remote = 1; remote <= 8; ++remote) {
      const auto a = Row("a", local, 10);
      const auto b = Row("b", remote, 50);
      const std::vector<Pair> pairs = ChoosePairs(a, b, 16);
      ASSERT_EQ(pairs.size(), static_cast<size_t>(std::max(local, remote)));
      std::vector<int> of_local(a.size()), of_remote(b.size());
      for (const Pair& pair : pairs) {
        ++of_local[pair.local];
        ++of_remote[pair.remote];
      }
      const auto evenly = [](const std::vector<int>& uses) {
        const auto [least, most] = std::ranges::minmax(uses);
        return least >= 1 && most - least <= 1;
      };
      EXPECT_TRUE(evenly(of_local) && evenly(of_remote)) << local << " to " << remote;
    }
  }
  EXPECT_EQ(ChoosePairs(Row("a", 1, 10), Row("b", 20, 50), 16).size(), 16u);
  EXPECT_TRUE(ChoosePairs({}, Row("b", 2, 50), 16).empty());
}

TEST(VerbsPairs, SubnetsComeFirstAndNamesDecide) {
  const std::vector<PortInfo> a = {PortAt("a0", 1, 1), PortAt("a1", 2, 1)};
  const std::vector<PortInfo> b = {PortAt("b0", 2, 2), PortAt("b1", 1, 2)};
  EXPECT_EQ(ChoosePairs(a, b, 16), (std::vector<Pair>{{0, 1}, {1, 0}}));
  const std::vector<PortInfo> red = {PortAt("a0", 1, 1, "red"), PortAt("a1", 1, 2, "blue")};
  const std::vector<PortInfo> blue = {PortAt("b0", 1, 3, "blue"), PortAt("b1", 1, 4, "blue")};
  EXPECT_EQ(ChoosePairs(red, blue, 16), (std::vector<Pair>{{1, 0}, {1, 1}}));
  EXPECT_THAT(WhyApart(red[0], blue[0]), HasSubstr("a0 is in fabric red"));
  PortInfo ib = PortAt("ib", 1, 1);
  ib.link_layer = IBV_LINK_LAYER_INFINIBAND;
  EXPECT_THAT(WhyApart(red[0], ib), HasSubstr("InfiniBand"));
}

TEST(VerbsPairs, OfInfinibandThePrefixDecidesUnlessThereIsAName) {
  const auto port = [](uint64_t prefix, std::string fabric) {
    PortInfo out{.name = "p", .fabric = std::move(fabric)};
    out.link_layer = IBV_LINK_LAYER_INFINIBAND;
    const ibv_gid gid = kvxfer::testing::InfinibandPort(3, prefix).gids.front().gid;
    std::memcpy(out.gid.data(), gid.raw, out.gid.size());
    return out;
  };
  constexpr uint64_t kOne = 0xfec0'0000'0000'0001;
  constexpr uint64_t kTwo = 0xfec0'0000'0000'0002;
  EXPECT_EQ(WhyApart(port(kOne, ""), port(kOne, "")), "");
  EXPECT_THAT(WhyApart(port(kOne, ""), port(kTwo, "")), HasSubstr("subnet prefixes"));
  EXPECT_EQ(WhyApart(port(kOne, "red"), port(kTwo, "red")), "");
  EXPECT_THAT(WhyApart(port(kOne, "red"), port(kOne, "blue")), HasSubstr("fabric red"));
  // A port that is down tells none.
  PortInfo down = port(kTwo, "");
  down.gid = {};
  EXPECT_EQ(WhyApart(port(kOne, ""), down), "");
  EXPECT_TRUE(CheckPairs(std::vector{port(kOne, "")}, std::vector{port(kTwo, ""), down}).ok());
  EXPECT_FALSE(CheckPairs(std::vector{port(kOne, "")}, std::vector{port(kTwo, "")}).ok());
}

TEST(VerbsPairs, AnotherIsNeitherUsedNorBad) {
  const auto a = Row("a", 2, 10);
  const auto b = Row("b", 2, 50);
  const std::vector<Pair> used = {{1, 1}};
  const std::vector<Pair> bad = {{0, 0}};
  const std::optional<Pair> other = ChooseOther(a, b, used, bad);
  ASSERT_TRUE(other.has_value());
  EXPECT_FALSE(*other == used[0] || *other == bad[0]);
  const std::vector<Pair> all = {{0, 0}, {0, 1}, {1, 0}};
  EXPECT_FALSE(ChooseOther(a, b, used, all).has_value());
}

std::vector<Blob> Examples() {
  const QpAddress address{
      .number = 0xabcdef, .psn = 0x123456, .reads = 16, .port = PortAt("mlx5_0:1", 1, 2, "red")};
  return {Ports{.ports = Row("p", 3, 1)},
          Ports{},
          Offer{.rail = 3, .life = 9, .port = 2, .from = address},
          Answer{.rail = 3, .life = 9, .at = address, .scratch = 0x7000, .scratch_key = 5},
          Answer{.rail = 3, .life = 9, .error = "no"},
          Probe{.rail = 1, .life = 2, .nonce = UINT64_MAX},
          Probed{.rail = 1, .life = 2, .found = true},
          RailLost{.rail = 1, .life = 2, .why = "port down"},
          Quiet{.transfer = 77},
          ControlOffer{.port = 2, .from = address},
          ControlAnswer{.at = address},
          ControlUp{},
          ControlLost{.why = "port down"},
          ControlPart{.number = 7, .more = true, .bytes = std::string("\0\n\xff", 3)}};
}

std::span<const std::byte> AsBytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(VerbsBlobs, WhatIsSaidIsHeard) {
  for (const Blob& blob : Examples()) {
    const std::string bytes = Encode(blob);
    const auto back = Decode(AsBytes(bytes));
    ASSERT_OK(back);
    EXPECT_EQ(Encode(*back), bytes) << blob.index();
  }
}

TEST(VerbsBlobs, DamageIsRefusedOrHarmless) {
  std::mt19937_64 random(kvxfer::testing::TestSeed());
  for (const Blob& blob : Examples()) {
    const std::string bytes = Encode(blob);
    for (size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(Decode(AsBytes(bytes).first(length)).ok()) << blob.index() << " " << length;
    }
    EXPECT_FALSE(Decode(AsBytes(bytes + std::string(1, 0))).ok());
    for (int i = 0; i < 2000; ++i) {
      std::string damaged = bytes;
      for (auto flips = 1 + random() % 4; flips > 0; --flips) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      // Expect what is taken for whole to say the same again.
      const auto got = Decode(AsBytes(damaged));
      EXPECT_TRUE(!got.ok() || Decode(AsBytes(Encode(*got))).ok());
    }
  }
}

TEST(VerbsSendQueue, RoomIsExactAndNumbersGoOn) {
  SendQueue queue;
  queue.Reset(10, 100);
  EXPECT_EQ(queue.space(), 10u);
  EXPECT_EQ(queue.Push({.op = 1, .transfer = 5, .requests = 4}), 100u);
  EXPECT_EQ(queue.Push({.op = 2, .transfer = 6, .requests = 6}), 101u);
  EXPECT_EQ(queue.space(), 0u);
  EXPECT_EQ(queue.CountOf(5), 1u);
  EXPECT_TRUE(queue.Has(101));
  EXPECT_FALSE(queue.Has(99));
  EXPECT_FALSE(queue.Has(102));
  EXPECT_EQ(queue.Pop().op, 1u);
  EXPECT_EQ(queue.space(), 4u);
  EXPECT_FALSE(queue.Has(100));
  const uint64_t next = queue.next_number();
  queue.Reset(10, next);
  EXPECT_FALSE(queue.Has(101));
  EXPECT_EQ(queue.Push({.requests = 1}), 102u);
  const WorkId id{.slot = 65535, .number = (uint64_t{1} << 47) - 1, .last = true};
  const WorkId back = WorkId::Decode(id.Encode());
  EXPECT_EQ(back.slot, id.slot);
  EXPECT_EQ(back.number, id.number);
  EXPECT_TRUE(back.last);
}

TEST(VerbsSendQueue, WithoutOrderEachEndsByItself) {
  SendQueue queue;
  queue.Reset(4, 7);
  for (uint64_t op = 1; op <= 4; ++op) queue.Push({.op = op, .transfer = 5, .requests = 1});
  EXPECT_EQ(queue.Take(9).op, 3u);
  EXPECT_FALSE(queue.Has(9));
  EXPECT_EQ(queue.CountOf(5), 3u);
  EXPECT_EQ(queue.open(), 3u);
  EXPECT_EQ(queue.space(), 0u);
  EXPECT_EQ(queue.Take(7).op, 1u);
  EXPECT_EQ(queue.space(), 1u);
  EXPECT_EQ(queue.Take(8).op, 2u);
  EXPECT_EQ(queue.space(), 3u);
  EXPECT_EQ(queue.open(), 1u);
  EXPECT_EQ(queue.Take(10).op, 4u);
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.space(), 4u);
}

TEST(VerbsErrors, EachStatusHasItsNameItsCodeAndARemedy) {
  for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_GENERAL_ERR; ++status) {
    const absl::Status error = CompletionError("peer p, rail 1", 77, "an RDMA write",
                                               static_cast<ibv_wc_status>(status), 0x81);
    EXPECT_FALSE(error.ok());
    for (const char* part : {"peer p, rail 1", "queue pair 77", "an RDMA write", "0x81"}) {
      EXPECT_THAT(std::string(error.message()), HasSubstr(part));
    }
  }
  EXPECT_EQ(StatusName(IBV_WC_RETRY_EXC_ERR), "IBV_WC_RETRY_EXC_ERR");
  const MemorySpan span{.data = nullptr, .bytes = 10};
  EXPECT_TRUE(Fails(RegistrationError("mlx5_0", span, ENOMEM), absl::StatusCode::kResourceExhausted,
                    {"mlx5_0", "ulimit -l", "IPC_LOCK"}));
  EXPECT_TRUE(Fails(RegistrationError("mlx5_0", span, EFAULT), absl::StatusCode::kInvalidArgument,
                    {"freed"}));
  EXPECT_TRUE(Fails(RegistrationError("mlx5_0", span, EPERM), absl::StatusCode::kPermissionDenied,
                    {"IPC_LOCK"}));
  EXPECT_TRUE(
      Fails(OpenError("mlx5_0", EACCES), absl::StatusCode::kPermissionDenied, {"/dev/infiniband"}));
}

TEST(VerbsFactory, IsUsableOrSaysWhyNot) {
  AgentOptions options;
  options.name = "alone";
  const auto made = MakeBackend("verbs", {.options = options});
  if (made.ok()) {
    EXPECT_THAT((*made)->Describe().listen_address, HasSubstr("127.0.0.1:"));
  } else {
    // Unimplemented: no device, which the engine does not warn of.
    EXPECT_TRUE(absl::IsUnimplemented(made.status()) || absl::IsUnavailable(made.status()) ||
                absl::IsPermissionDenied(made.status()))
        << made.status();
    EXPECT_GT(made.status().message().size(), 30u);
  }
}

}  // namespace
}  // namespace kvxfer::verbs
