// Regions that devices know in several parts: which part an address is in, what the key says, and
// what is said where no device takes GPU memory.
#include "src/backends/verbs/part_table.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "src/backends/verbs/errors.h"
#include "src/backends/verbs/regions.h"
#include "src/core/protocol/codec.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::verbs {
namespace {

using ::kvxfer::testing::Fails;
using ::kvxfer::testing::TestSeed;

constexpr uint64_t kBase = 0x7f3200000200;

// By looking at one part after the other.
size_t SlowFind(std::span<const uint64_t> bytes, uint64_t offset) {
  size_t part = 0;
  while (part + 1 < bytes.size() && offset >= bytes[part]) offset -= bytes[part++];
  return part;
}

void ExpectFindsAll(std::span<const uint64_t> bytes, std::mt19937_64& random) {
  const PartTable table(kBase, bytes);
  ASSERT_EQ(table.size(), bytes.size());
  const uint64_t total = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  EXPECT_EQ(table.end(bytes.size() - 1), kBase + total);
  std::vector<uint64_t> offsets = {0, total - 1};
  uint64_t end = 0;
  for (const uint64_t of_part : bytes) {
    end += of_part;
    for (const uint64_t around : {end - 1, end, end + 1}) offsets.push_back(around);
  }
  for (int i = 0; i < 200; ++i) offsets.push_back(random() % total);
  for (const uint64_t offset : offsets) {
    if (offset >= total) continue;
    ASSERT_EQ(table.Find(kBase + offset), SlowFind(bytes, offset))
        << offset << " of " << total << " in " << bytes.size() << " parts";
  }
}

TEST(VerbsParts, TheTableFindsWhatASearchDoes) {
  std::mt19937_64 random(TestSeed());
  ExpectFindsAll(std::vector<uint64_t>{1}, random);
  ExpectFindsAll(std::vector<uint64_t>{1, 1, 1}, random);
  ExpectFindsAll(std::vector<uint64_t>(1000, 2 << 20), random);
  // As a span that begins and ends within a part.
  std::vector<uint64_t> cut(100, 20 << 20);
  cut.front() = 512;
  cut.back() = 1;
  ExpectFindsAll(cut, random);
  // All small ones in one place.
  std::vector<uint64_t> uneven(500, 1);
  uneven.push_back(uint64_t{1} << 40);
  ExpectFindsAll(uneven, random);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> bytes(1 + random() % 100);
    for (uint64_t& of_part : bytes) of_part = 1 + random() % (uint64_t{1} << random() % 36);
    ExpectFindsAll(bytes, random);
  }
}

TEST(VerbsParts, AKeyReachesToTheEndOfItsPart) {
  PartKeys keys(PartTable(kBase, std::vector<uint64_t>{100, 50, 200}));
  keys.Add(3, std::vector<uint32_t>{31, 32, 33});
  keys.Add(5, std::vector<uint32_t>{51, 52, 53});
  const auto at = [&](size_t device, uint64_t offset, uint64_t bytes) {
    const uint32_t key = keys.At(device, kBase + offset, bytes);
    return std::pair(key, bytes);
  };
  EXPECT_EQ(at(3, 0, 350), std::pair(31u, uint64_t{100}));
  EXPECT_EQ(at(3, 99, 10), std::pair(31u, uint64_t{1}));
  EXPECT_EQ(at(5, 100, 50), std::pair(52u, uint64_t{50}));
  EXPECT_EQ(at(5, 160, 7), std::pair(53u, uint64_t{7}));
  EXPECT_EQ(at(4, 160, 7).first, 0u);
}

// --- the key of a region in parts ---------------------------------------------------------------

class KeyBytes {
 public:
  KeyBytes& U8(unsigned v) {
    bytes_.push_back(static_cast<char>(v));
    return *this;
  }
  KeyBytes& U32(uint32_t v) {
    std::byte raw[4];
    wire::StoreLittle<uint32_t>(raw, v);
    bytes_.append(reinterpret_cast<const char*>(raw), sizeof(raw));
    return *this;
  }
  KeyBytes& U64(uint64_t v) {
    std::byte raw[8];
    wire::StoreLittle<uint64_t>(raw, v);
    bytes_.append(reinterpret_cast<const char*>(raw), sizeof(raw));
    return *this;
  }
  const std::string& get() const { return bytes_; }

 private:
  std::string bytes_;
};

constexpr RemoteRegion kPartsRegion{
    .id = RegionId{7}, .rkey = 0x01020304, .base = kBase, .bytes = 2 * 100 + 50};

// Two devices, 3 (penalty 1) and 9; two parts of 100 bytes and one of 50.
KeyBytes KeyInParts() {
  KeyBytes blob;
  blob.U8(3).U32(kPartsRegion.rkey).U8(2).U32(2);
  blob.U8(3 | 1 << 6).U8(9);
  blob.U32(2).U64(100).U32(1).U64(50);
  for (const uint32_t key : {31u, 32u, 33u, 91u, 92u, 93u}) blob.U32(key);
  return blob;
}

TEST(VerbsParts, AKeyTellsWhatEachDeviceHasForEachPart) {
  ASSERT_OK_AND_ASSIGN(const auto key, VerbsRemoteKey::Decode(kPartsRegion, KeyInParts().get()));
  ASSERT_NE(key->parts(), nullptr);
  EXPECT_TRUE(key->has(3) && key->has(9) && !key->has(0));
  EXPECT_EQ(key->penalty(3), 1u);
  EXPECT_EQ(key->penalty(9), 0u);
  uint64_t bytes = 1000;
  EXPECT_EQ(key->parts()->At(9, kBase + 150, bytes), 92u);
  EXPECT_EQ(bytes, 50u);
  bytes = 1000;
  EXPECT_EQ(key->parts()->At(3, kBase + 249, bytes), 33u);
  EXPECT_EQ(bytes, 1u);
}

TEST(VerbsParts, WhatIsCutOffOrDoesNotAddUpIsRefused) {
  const std::string whole = KeyInParts().get();
  const auto refused = [](const RemoteRegion& region, const std::string& key) {
    return Fails(VerbsRemoteKey::Decode(region, key).status(), absl::StatusCode::kInvalidArgument,
                 {"region 7", "damaged"});
  };
  for (size_t length = 1; length < whole.size(); ++length) {
    EXPECT_TRUE(refused(kPartsRegion, whole.substr(0, length))) << length;
  }
  EXPECT_TRUE(refused(kPartsRegion, whole + "x"));
  // Parts that are less, or more, than the region.
  for (const uint64_t bytes : {249u, 251u, 0u}) {
    RemoteRegion other = kPartsRegion;
    other.bytes = bytes;
    EXPECT_TRUE(refused(other, whole)) << bytes;
  }
  // So many that there would be no end.
  KeyBytes endless;
  endless.U8(3).U32(kPartsRegion.rkey).U8(1).U32(1).U8(3).U32(UINT32_MAX).U64(1);
  EXPECT_TRUE(refused(kPartsRegion, endless.get()));
  KeyBytes none;
  none.U8(3).U32(kPartsRegion.rkey).U8(0).U32(0);
  EXPECT_TRUE(refused(kPartsRegion, none.get()));
  KeyBytes empty;
  empty.U8(3).U32(kPartsRegion.rkey).U8(1).U32(1).U8(3).U32(1).U64(0).U32(5);
  EXPECT_TRUE(refused(kPartsRegion, empty.get()));
}

// Whatever comes, nothing beyond it is read; a sanitizer sees it.
TEST(VerbsParts, BytesOfAnyKindAreAnAnswerOrARefusal) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 20'000; ++round) {
    std::string key = KeyInParts().get();
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      // The agent's rkey is right.
      const size_t at = 5 + random() % (key.size() - 5);
      key[at] = static_cast<char>(random() % 4 == 0 ? random() : random() % 4);
    }
    key.resize(random() % 2 == 0 ? key.size() : 5 + random() % (key.size() - 5));
    const auto decoded = VerbsRemoteKey::Decode(kPartsRegion, key);
    if (!decoded.ok() || (*decoded)->parts() == nullptr) continue;
    for (const uint64_t offset :
         {uint64_t{0}, random() % kPartsRegion.bytes, kPartsRegion.bytes - 1}) {
      uint64_t bytes = kPartsRegion.bytes - offset;
      (*decoded)->parts()->At(random() % kMaxDevices, kBase + offset, bytes);
      ASSERT_GT(bytes, 0u);
    }
  }
}

TEST(VerbsParts, MoreThanPeersCanBeToldIsRefused) {
  EXPECT_OK(CheckKeyBytes(PartTable(kBase, std::vector<uint64_t>(2'000, 20 << 20)), 8));
  EXPECT_TRUE(Fails(CheckKeyBytes(PartTable(kBase, std::vector<uint64_t>(2'100, 20 << 20)), 8),
                    absl::StatusCode::kResourceExhausted,
                    {"2100 allocations", "several regions", "verbs.devices"}));
}

// --- what is said where no device takes it
// --------------------------------------------------------

absl::Status Refused(const GpuRefusal& refusal) {
  return GpuRegistrationError("mlx5_0", "64 bytes at 0x10 of GPU 0 (a GPU)", refusal);
}

TEST(VerbsGpuErrors, WithoutEitherWayBothAreNamed) {
  EXPECT_TRUE(Fails(Refused({.no_dmabuf = absl::UnimplementedError("it exports no dmabuf")}),
                    absl::StatusCode::kFailedPrecondition,
                    {"GPU memory cannot be given to mlx5_0", "64 bytes at 0x10 of GPU 0",
                     "it exports no dmabuf", "the module is not loaded", "modprobe nvidia-peermem",
                     "515 or newer", "Linux 5.12 or newer"}));
  // The NIC's driver does not do dmabufs.
  EXPECT_TRUE(Fails(Refused({.dmabuf_error = EOPNOTSUPP}), absl::StatusCode::kFailedPrecondition,
                    {"ibv_reg_dmabuf_mr", "Operation not supported", "the module is not loaded",
                     "a NIC driver that takes dmabufs"}));
}

// Of a module that is loaded, whatever error it makes of it.
TEST(VerbsGpuErrors, BadAddressListsWhatIsLikelyInItsOrder) {
  for (const int error : {EFAULT, EINVAL}) {
    const absl::Status bad = Refused({.no_dmabuf = absl::UnimplementedError("none"),
                                      .peer_memory = true,
                                      .peer_memory_error = error});
    EXPECT_TRUE(Fails(bad, absl::StatusCode::kFailedPrecondition, {"ibv_reg_mr"}));
    size_t last = 0;
    for (const char* cause : {"BAR1 is full", "does not fit the NIC's driver", "ib_core",
                              "modprobe -r nvidia-peermem", "dmabuf", "Linux 5.12"}) {
      const size_t at = std::string(bad.message()).find(cause, last + 1);
      ASSERT_NE(at, std::string::npos) << cause;
      last = at;
    }
  }
  // The module is not loaded: that it refused the dmabuf so is no sign of BAR1.
  EXPECT_TRUE(Fails(Refused({.dmabuf_error = EFAULT}), absl::StatusCode::kFailedPrecondition,
                    {"modprobe nvidia-peermem"}));
}

TEST(VerbsGpuErrors, MemoryThatRanOutNamesTheBarAndTheLimit) {
  for (const GpuRefusal& refusal :
       {GpuRefusal{.dmabuf_error = ENOMEM},
        GpuRefusal{.dmabuf_error = ENOMEM, .peer_memory = true, .peer_memory_error = EFAULT},
        GpuRefusal{.dmabuf_error = EINVAL, .peer_memory = true, .peer_memory_error = ENOMEM}}) {
    EXPECT_TRUE(Fails(Refused(refusal), absl::StatusCode::kResourceExhausted,
                      {"BAR1", "nvidia-smi -q -d MEMORY", "ulimit -l", "IPC_LOCK"}));
  }
  EXPECT_TRUE(
      Fails(Refused({.dmabuf_error = EPERM}), absl::StatusCode::kPermissionDenied, {"IPC_LOCK"}));
}

}  // namespace
}  // namespace kvxfer::verbs
