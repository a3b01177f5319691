// What a key of verbs says to a peer.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

#include "src/backends/verbs/regions.h"
#include "src/core/protocol/codec.h"
#include "tests/support/status_macros.h"

namespace kvxfer::verbs {
namespace {

constexpr uint32_t kRkey = 0x01020304;
constexpr RemoteRegion kRegion{.id = RegionId{7}, .rkey = kRkey};

// Device 3, with two bits above its number.
std::string KeyOf(uint8_t form, unsigned penalty) {
  std::array<std::byte, 10> bytes{};
  bytes[0] = std::byte{form};
  wire::StoreLittle<uint32_t>(&bytes[1], kRkey);
  bytes[5] = static_cast<std::byte>(3 | penalty << 6);
  wire::StoreLittle<uint32_t>(&bytes[6], 0x99);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(VerbsKey, TellsTheKeyAndThePenaltyOfEachDevice) {
  for (const unsigned penalty : {0u, 1u, 2u}) {
    ASSERT_OK_AND_ASSIGN(const auto key, VerbsRemoteKey::Decode(kRegion, KeyOf(2, penalty)));
    EXPECT_TRUE(key->has(3));
    EXPECT_FALSE(key->has(2));
    EXPECT_EQ(key->rkey(3), 0x99u);
    EXPECT_EQ(key->penalty(3), penalty);
    EXPECT_EQ(key->penalty(1000), 0u);
  }
  // More than there is.
  ASSERT_OK_AND_ASSIGN(const auto most, VerbsRemoteKey::Decode(kRegion, KeyOf(2, 3)));
  EXPECT_EQ(most->penalty(3), kMaxPenalty);
  ASSERT_OK_AND_ASSIGN(const auto plain, VerbsRemoteKey::Decode(kRegion, KeyOf(1, 0)));
  EXPECT_EQ(plain->rkey(3), 0x99u);
  EXPECT_EQ(plain->penalty(3), 0u);
}

TEST(VerbsKey, AFormOfAnotherVersionIsNotCalledDamage) {
  const absl::Status unknown = VerbsRemoteKey::Decode(kRegion, KeyOf(9, 0)).status();
  EXPECT_TRUE(testing::Fails(unknown, absl::StatusCode::kInvalidArgument,
                             {"region 7", "form 9", "same kvxfer version"}));
  const std::string whole = KeyOf(2, 0);
  for (size_t length = 0; length < whole.size(); ++length) {
    const bool no_devices = length == 5;
    EXPECT_EQ(VerbsRemoteKey::Decode(kRegion, whole.substr(0, length)).ok(), no_devices) << length;
  }
}

}  // namespace
}  // namespace kvxfer::verbs
