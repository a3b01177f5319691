#include "src/core/protocol/metadata.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "src/core/base/text.h"
#include "src/core/protocol/wire_format.h"
#include "tests/fuzz/metadata_checks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/protocol/golden/metadata_v1.h"

namespace kvxfer {
namespace {

using testing::Fails;
using testing::SealMetadata;
constexpr auto kRefused = absl::StatusCode::kInvalidArgument;
constexpr size_t kHeaderBytes = 20;

AgentMetadata Sample(uint32_t regions) {
  AgentMetadata metadata;
  metadata.name = "decode-0";
  for (size_t i = 0; i < 16; ++i) metadata.incarnation.bytes[i] = static_cast<uint8_t>(i + 1);
  metadata.min_version = metadata.max_version = 7;  // as the golden bytes have it
  metadata.host = {.hostname = "node-17",
                   .boot_id = "0f5a9c1e-7f3b-4ac2-9d52-0d8f1f5f2a11",
                   .net_namespace = 4026531840,
                   .pid_namespace = 4026531836,
                   .uid = 1000,
                   .pid = 4711,
                   .start_time = 123456789};
  metadata.backends = {{.backend = "shm", .address = "@kvxfer-0123456789abcdef"},
                       {.backend = "tcp", .address = "10.0.0.2:7471"}};
  for (uint32_t id = 1; id <= regions; ++id) {
    metadata.regions.push_back({.region = {.id = RegionId{id},
                                           .rkey = 0x9e3779b9u * id,
                                           .base = 0x7f0000000000 + uint64_t{id} * 0x40000000,
                                           .bytes = 0x40000000,
                                           .kind = id == 2 ? MemoryKind::kCuda : MemoryKind::kHost,
                                           .device_id = id == 2 ? 3 : 0,
                                           .access = Access::kReadWrite},
                                .keys = {{"shm", "key of 16 bytes."}}});
  }
  metadata.last_region = regions + 1;
  return metadata;
}

void ExpectSame(const AgentMetadata& a, const AgentMetadata& b) {
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.incarnation, b.incarnation);
  EXPECT_EQ(a.min_version, b.min_version);
  EXPECT_EQ(a.max_version, b.max_version);
  EXPECT_EQ(a.last_region, b.last_region);
  EXPECT_EQ(a.host.hostname, b.host.hostname);
  EXPECT_EQ(a.host.boot_id, b.host.boot_id);
  EXPECT_EQ(a.host.net_namespace, b.host.net_namespace);
  EXPECT_EQ(a.host.pid_namespace, b.host.pid_namespace);
  EXPECT_EQ(a.host.uid, b.host.uid);
  EXPECT_EQ(a.host.pid, b.host.pid);
  EXPECT_EQ(a.host.start_time, b.host.start_time);
  ASSERT_EQ(a.backends.size(), b.backends.size());
  for (size_t i = 0; i < a.backends.size(); ++i) {
    EXPECT_EQ(a.backends[i].backend, b.backends[i].backend);
    EXPECT_EQ(a.backends[i].address, b.backends[i].address);
  }
  ASSERT_EQ(a.regions.size(), b.regions.size());
  for (size_t i = 0; i < a.regions.size(); ++i) {
    EXPECT_EQ(a.regions[i].keys, b.regions[i].keys);
    EXPECT_EQ(a.regions[i].region.id, b.regions[i].region.id);
    EXPECT_EQ(a.regions[i].region.rkey, b.regions[i].region.rkey);
    EXPECT_EQ(a.regions[i].region.base, b.regions[i].region.base);
    EXPECT_EQ(a.regions[i].region.bytes, b.regions[i].region.bytes);
    EXPECT_EQ(a.regions[i].region.kind, b.regions[i].region.kind);
    EXPECT_EQ(a.regions[i].region.device_id, b.regions[i].region.device_id);
    EXPECT_EQ(a.regions[i].region.access, b.regions[i].region.access);
  }
}

std::string FromHex(std::string hex) {
  hex.erase(std::remove(hex.begin(), hex.end(), ' '), hex.end());
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(Metadata, ComesBackAsItWas) {
  AgentMetadata metadata = Sample(3);
  metadata.name = "größe-日本";
  metadata.regions[1].keys = {{"shm", std::string("\0\1", 2)}, {"verbs", "rkey"}};
  metadata.regions[2].keys = {};
  ASSERT_OK_AND_ASSIGN(const AgentMetadata decoded, DecodeMetadata(EncodeMetadata(metadata)));
  ExpectSame(decoded, metadata);
  ASSERT_OK_AND_ASSIGN(const AgentMetadata bare, DecodeMetadata(EncodeMetadata(Sample(0))));
  ExpectSame(bare, Sample(0));
}

// Agents of this version must understand what version 1 wrote, and write it the same.
TEST(Metadata, BytesOfVersion1AreKept) {
  const std::string golden = FromHex(golden::kMetadata);
  ASSERT_OK_AND_ASSIGN(const AgentMetadata decoded, DecodeMetadata(golden));
  ExpectSame(decoded, Sample(2));
  EXPECT_EQ(EncodeMetadata(Sample(2)), golden);
}

TEST(Metadata, IsSmall) { EXPECT_LE(EncodeMetadata(Sample(64)).size(), 4096u); }

TEST(Metadata, EveryBitFlipIsFound) {
  const std::string good = EncodeMetadata(Sample(8));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(DecodeMetadata(bad).ok()) << "bit " << bit;
  }
}

TEST(Metadata, EveryTruncationAndExtensionIsFound) {
  const std::string good = EncodeMetadata(Sample(8));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_TRUE(Fails(DecodeMetadata(std::string_view(good).substr(0, size)), kRefused)) << size;
  }
  EXPECT_TRUE(Fails(DecodeMetadata(good + "x"), kRefused));
}

TEST(Metadata, OtherThingsAreNotMetadata) {
  EXPECT_TRUE(Fails(DecodeMetadata(""), kRefused, {"not kvxfer metadata"}));
  EXPECT_TRUE(Fails(DecodeMetadata("{\"json\": true}"), kRefused, {"not kvxfer metadata"}));
  EXPECT_TRUE(Fails(DecodeMetadata(SealMetadata("\xff\xff\xff")), kRefused, {"protobuf"}));
}

TEST(Metadata, AnotherEnvelopeVersionIsRefused) {
  std::string newer = EncodeMetadata(Sample(1));
  newer[4] = 2;
  EXPECT_TRUE(
      Fails(DecodeMetadata(newer), absl::StatusCode::kFailedPrecondition, {"version 2", "update"}));
}

// A newer agent may add fields: number 1000 as a varint, 1001 as bytes.
TEST(Metadata, UnknownFieldsAreAccepted) {
  std::string inside = EncodeMetadata(Sample(2)).substr(kHeaderBytes);
  inside += "\xc0\x3e\x2a";
  inside += "\xca\x3e\x03new";
  ASSERT_OK_AND_ASSIGN(const AgentMetadata decoded, DecodeMetadata(SealMetadata(inside)));
  ExpectSame(decoded, Sample(2));
}

TEST(Metadata, NoCommonProtocolVersion) {
  AgentMetadata metadata = Sample(1);
  metadata.min_version = kMaxProtocolVersion + 1;
  metadata.max_version = kMaxProtocolVersion + 4;
  const std::string range = absl::StrCat(metadata.min_version, " to ", metadata.max_version);
  EXPECT_TRUE(Fails(DecodeMetadata(EncodeMetadata(metadata)), absl::StatusCode::kFailedPrecondition,
                    {range.c_str()}));
  metadata.min_version = kMinProtocolVersion;
  EXPECT_OK(DecodeMetadata(EncodeMetadata(metadata)));
}

// They end up in logs and in Python: see CheckName.
TEST(Metadata, TextThatCannotBeShownIsRefused) {
  for (const char* bad : {"\xff", "a\nb", "\x1b[2J", "\xc3"}) {
    const auto refused = [&](const std::function<void(AgentMetadata&)>& change, const char* word) {
      AgentMetadata metadata = Sample(3);
      change(metadata);
      const auto decoded = DecodeMetadata(EncodeMetadata(metadata));
      EXPECT_TRUE(Fails(decoded, kRefused, {"metadata", word, "UTF-8"}));
      EXPECT_TRUE(IsPrintable(std::string(decoded.status().message()))) << decoded.status();
    };
    refused([&](auto& m) { m.name = bad; }, "name");
    refused([&](auto& m) { m.host.hostname = bad; }, "hostname");
    refused([&](auto& m) { m.host.boot_id = bad; }, "boot_id");
    refused([&](auto& m) { m.backends[0].backend = bad; }, "backend");
    refused([&](auto& m) { m.regions[1].keys = {{bad, "rkey"}}; }, "key_backends");
  }
}

TEST(Metadata, FieldsOutOfBoundsAreNamed) {
  const auto refused = [](const std::function<void(AgentMetadata&)>& change, const char* word) {
    AgentMetadata metadata = Sample(3);
    change(metadata);
    EXPECT_TRUE(Fails(DecodeMetadata(EncodeMetadata(metadata)), kRefused, {"metadata", word}));
  };
  refused([](auto& m) { m.name = ""; }, "name");
  refused([](auto& m) { m.name = std::string(256, 'n'); }, "name");
  refused([](auto& m) { m.incarnation = {}; }, "incarnation");
  refused([](auto& m) { m.min_version = 2, m.max_version = 1; }, "versions");
  refused([](auto& m) { m.host.hostname = std::string(256, 'h'); }, "hostname");
  refused([](auto& m) { m.host.boot_id = std::string(256, 'b'); }, "boot_id");
  refused([](auto& m) { m.backends[0].backend = ""; }, "backend");
  refused([](auto& m) { m.backends[0].backend = "tcp"; }, "twice");
  refused([](auto& m) { m.backends[0].address = std::string(65537, 'a'); }, "address");
  refused([](auto& m) { m.regions[1].region.id = RegionId{1}; }, "region 1: occurs twice");
  refused([](auto& m) { m.regions[1].region.id = RegionId::kNone; }, "region 0");
  refused([](auto& m) { m.last_region = 2; }, "region 3");
  refused([](auto& m) { m.regions[1].region.rkey = 0; }, "rkey");
  refused([](auto& m) { m.regions[1].region.bytes = 0; }, "region 2");
  refused([](auto& m) { m.regions[1].region.bytes = UINT64_MAX; }, "address space");
  refused([](auto& m) { m.regions[1].region.kind = MemoryKind{2}; }, "memory kind 2");
  refused([](auto& m) { m.regions[1].region.device_id = -1; }, "device_id");
  refused([](auto& m) { m.regions[1].region.access = Access{4}; }, "access 4");
  refused([](auto& m) { m.regions[1].keys["shm"] = ""; }, "region 2 key");
  refused([](auto& m) { m.regions[1].keys["shm"] = std::string(65537, 'k'); }, "region 2 key");
}

// What no encoder of ours writes: an incarnation of 15 bytes (field 2), a key of an unknown
// backend (regions = 8, keys = 8, backend = 1).
TEST(Metadata, ForeignEncodingsAreBounded) {
  const std::string inside = EncodeMetadata(Sample(2)).substr(kHeaderBytes);
  std::string short_incarnation = inside;
  short_incarnation += "\x12\x0f" + std::string(15, 'i');
  EXPECT_TRUE(
      Fails(DecodeMetadata(SealMetadata(short_incarnation)), kRefused, {"incarnation", "15"}));
  const std::string key("\x42\x05\x08\x09\x12\x01k", 7);
  std::string fields("\x08\x03\x15\x01\0\0\0\x18\x01\x20\x01", 11);
  fields += key;
  const std::string region = std::string("\x42") + static_cast<char>(fields.size()) + fields;
  EXPECT_TRUE(
      Fails(DecodeMetadata(SealMetadata(inside + region)), kRefused, {"region 3 key", "index 9"}));
}

// A small run of the fuzz target's checks.
TEST(Metadata, MutatedMetadataHolds) {
  std::mt19937_64 random(testing::TestSeed());
  const std::string inside = EncodeMetadata(Sample(4)).substr(kHeaderBytes);
  ASSERT_TRUE(testing::MetadataHolds(SealMetadata(inside)));
  for (int round = 0; round < testing::Scaled(20000); ++round) {
    std::string mutated = inside;
    for (uint64_t edits = random() % 3 + 1; edits > 0 && !mutated.empty(); --edits) {
      const size_t at = random() % mutated.size();
      switch (random() % 3) {
        case 0:
          mutated[at] = static_cast<char>(random());
          break;
        case 1:
          mutated.erase(at, random() % 8);
          break;
        default:
          mutated.insert(at, mutated.substr(random() % mutated.size(), random() % 32));
      }
    }
    ASSERT_TRUE(testing::MetadataHolds(SealMetadata(mutated))) << "round " << round;
  }
}

}  // namespace
}  // namespace kvxfer
