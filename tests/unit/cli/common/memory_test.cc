// The values of --memory, and the memory that each side gets.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/bench/plan.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/units.h"
#include "src/cli/demo/demo.h"

namespace kvxfer::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MemoryChoice, IsWhatItsNameSays) {
  for (const char* name :
       {"mapped", "mapped-small", "mapped-reserved", "attached", "cuda:0", "cuda:17"}) {
    const auto choice = ParseMemoryChoice(name);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->ToString(), name);
  }
  EXPECT_EQ(*ParseMemoryChoice("host"), MemoryChoice(MemorySource::kMapped));
  EXPECT_EQ(*ParseMemoryChoice("cuda"), MemoryChoice(MemorySource::kCuda, 0));
  EXPECT_EQ(ParseMemoryChoice("cuda:17")->device, 17);
}

TEST(MemoryChoice, RefusesOtherNames) {
  for (const char* name : {"", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:1x", "cuda0", "cuda 0",
                           "cuda:99999999999", "cuda:1024", "mapped "}) {
    const auto choice = ParseMemoryChoice(name);
    EXPECT_EQ(choice.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(choice.status().message()), HasSubstr("cuda:N"));
  }
}

TEST(MemorySides, AreOneForBothOrOneEach) {
  const auto both = ParseMemorySides("cuda:1");
  ASSERT_TRUE(both.ok());
  EXPECT_EQ(both->here, both->there);
  EXPECT_EQ(both->Words(), "cuda:1 memory");
  const auto each = ParseMemorySides("host,cuda:1");
  ASSERT_TRUE(each.ok());
  EXPECT_EQ(each->here, MemoryChoice(MemorySource::kMapped));
  EXPECT_EQ(each->there, MemoryChoice(MemorySource::kCuda, 1));
  EXPECT_EQ(each->Words(), "mapped memory at the initiator, cuda:1 memory at the target");
  for (const char* text : {",", "host,", ",host", "host,host,host", "host cuda:1"}) {
    EXPECT_FALSE(ParseMemorySides(text).ok()) << text;
  }
}

TEST(MemorySides, ReachTheirSidesOfABench) {
  BenchOptions options;
  options.memory = "attached,cuda:3";
  options.block_sizes = {4096};
  const auto plan = MakePlan(options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  BenchCase bench = plan->cases[0];
  bench.targets = {"127.0.0.1:1"};
  EXPECT_EQ(bench.initiator_shape().memory, MemoryChoice(MemorySource::kAttached));
  EXPECT_EQ(bench.target_shape().memory, MemoryChoice(MemorySource::kCuda, 3));
  // The memory of a server is not checked here.
  EXPECT_EQ(plan->needs(plan->cases[0]).size(), 2u);
  options.servers = {"10.0.0.1"};
  EXPECT_EQ(MakePlan(options)->needs(plan->cases[0]).size(), 1u);
}

TEST(DemoMemory, OfTheHostIsEveryRanks) {
  const auto memory = DemoMemoryOf("attached,mapped-small", 2, 1);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_THAT(memory->prefill, ElementsAre(MemorySource::kAttached, MemorySource::kAttached));
  EXPECT_THAT(memory->decode, ElementsAre(MemorySource::kMappedSmall));
}

TEST(CacheMemory, GivesStretchesInOrder) {
  const auto memory = CacheMemory::Allocate(MemorySource::kAttached, 8192);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->size(), 8192u);
  const std::vector<Stretch> stretches = {{0, 16}, {16, 16}, {5000, 100}};
  const auto write = [](size_t i, std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(i + 1);
    return absl::OkStatus();
  };
  ASSERT_TRUE(memory->ForEach(stretches, Touch::kWrite, write).ok());
  std::vector<size_t> sizes;
  const auto look = [&](size_t i, std::span<std::byte> bytes) -> absl::Status {
    EXPECT_EQ(bytes.front(), static_cast<std::byte>(i + 1));
    sizes.push_back(bytes.size());
    return i == 1 ? absl::DataLossError("enough") : absl::OkStatus();
  };
  EXPECT_EQ(memory->ForEach(stretches, Touch::kRead, look).message(), "enough");
  EXPECT_THAT(sizes, ElementsAre(16u, 16u));
  EXPECT_EQ(memory->host_bytes()[32], std::byte{0});
  ASSERT_TRUE(memory->Zero({.offset = 16, .bytes = 5000}).ok());
  EXPECT_EQ(memory->host_bytes()[15], std::byte{1});
  EXPECT_EQ(memory->host_bytes()[16], std::byte{0});
}

TEST(CheckFits, AddsUpWhatSharesAPlace) {
  const std::vector<MemoryNeed> little = {{MemorySource::kMapped, 1 << 20},
                                          {MemorySource::kAttached, 1 << 20}};
  EXPECT_TRUE(CheckFits(little, "less").ok());
  const std::vector<MemoryNeed> much = {{MemorySource::kMapped, uint64_t{1} << 45},
                                        {MemorySource::kMapped, uint64_t{1} << 45}};
  const absl::Status refused = CheckFits(much, "a smaller --total");
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the run needs 64 TiB, this host has"));
}

}  // namespace
}  // namespace kvxfer::cli
