// Addresses, keys and reachability of the shm backend: what is read back is what was written, and
// nothing else is taken.

#include "src/backends/shm/wire.h"

#include <gtest/gtest.h>

#include <random>

#include "src/core/base/host_identity.h"

namespace kvxfer::shm {
namespace {

TEST(ShmWire, AddressAndKeySurviveTheTrip) {
  const Address address{.pid = 4294967295u, .start_time = UINT64_MAX, .socket = "kvxfer:x"};
  const auto back = DecodeAddress(Encode(address));
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->pid, address.pid);
  EXPECT_EQ(back->start_time, address.start_time);
  EXPECT_EQ(back->socket, address.socket);

  const RegionKey key{.mapped = true, .file = UINT64_MAX, .offset = 12345};
  const auto key_back = DecodeKey(Encode(key));
  ASSERT_TRUE(key_back.ok());
  EXPECT_TRUE(key_back->mapped);
  EXPECT_EQ(key_back->file, key.file);
  EXPECT_EQ(key_back->offset, key.offset);
  EXPECT_FALSE(DecodeKey(Encode(RegionKey{}))->mapped);
}

TEST(ShmWire, DamagedTextIsRefused) {
  for (const char* bad :
       {"", "mapped", "mapped:", "mapped:1", "mapped:1:", "mapped:1:x", "mapped:1:2x", "mapped:0:0",
        "mapped:-1:0", "attached ", "Attached", "mapped:99999999999999999999:0"}) {
    EXPECT_FALSE(DecodeKey(bad).ok()) << bad;
  }
  // Expect that random damage never crashes, and that what passes is a whole address.
  const std::string good = Encode(Address{.pid = 7, .start_time = 8, .socket = "name"});
  std::mt19937 random(9);
  for (int i = 0; i < 20'000; ++i) {
    std::string text = good.substr(0, random() % (good.size() + 1));
    if (!text.empty()) text[random() % text.size()] = static_cast<char>(random());
    if (const auto address = DecodeAddress(text); address.ok()) {
      EXPECT_NE(address->pid, 0u);
      EXPECT_FALSE(address->socket.empty());
    }
    EXPECT_FALSE(DecodeKey(text).ok());
  }
}

TEST(ShmWire, BodiesOfAnotherSizeAreRefused) {
  const OfferBody offer{.probe_address = 1, .probe_value = 2, .mapped_value = 3, .dumpable = 1};
  const std::string bytes = wire::Encode(offer);
  EXPECT_EQ(bytes.size(), 32u);
  EXPECT_EQ(wire::TryDecode<OfferBody>(bytes)->probe_value, 2u);
  EXPECT_FALSE(wire::TryDecode<OfferBody>(bytes.substr(1)).has_value());
  EXPECT_FALSE(wire::TryDecode<DialBody>(bytes).has_value());
}

TEST(ShmWire, AnUnknownHostIsAnotherHost) {
  EXPECT_FALSE(CheckReachable(HostIdentity{}, HostIdentity{}).ok());
  const HostIdentity host{
      .hostname = "a", .boot_id = "b", .net_namespace = 1, .pid_namespace = 2, .uid = 3, .pid = 4};
  EXPECT_TRUE(CheckReachable(host, host).ok());
}

}  // namespace
}  // namespace kvxfer::shm
