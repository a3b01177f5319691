// A paged cache is arithmetic: describing one of a million blocks takes no memory worth a word, in
// this process and in metadata.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/agent.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kRegions = 64;  // K and V of 32 layers
constexpr uint64_t kCount = 15'625;
constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kRegionBytes = kCount * kBlockBytes;
static_assert(kRegions * kCount == 1'000'000);

// Address space for the whole cache; no page of it is ever touched.
class Cache {
 public:
  Cache() {
    void* const memory = ::mmap(nullptr, kRegions * kRegionBytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    base_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  ~Cache() {
    if (base_ != nullptr) ::munmap(base_, kRegions * kRegionBytes);
  }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  bool ok() const { return base_ != nullptr; }
  MemorySpan whole() const { return {.data = base_, .bytes = kRegions * kRegionBytes}; }
  MemorySpan part(uint64_t i) const {
    return {.data = base_ + i * kRegionBytes, .bytes = kRegionBytes};
  }

 private:
  std::byte* base_ = nullptr;
};

// The cache as one registration, or one for each paged region.
enum class Registered : uint8_t { kWhole, kParts };

// One agent's description, as another takes it in.
struct Described {
  std::vector<PagedRegion> paged;
  std::string metadata;
};

absl::StatusOr<Described> Describe(Agent& owner, Agent& other, const Cache& cache, Registered how) {
  Described out;
  for (uint64_t i = 0; i < (how == Registered::kWhole ? 1 : kRegions); ++i) {
    auto id = owner.RegisterMemory(how == Registered::kWhole ? cache.whole() : cache.part(i),
                                   Access::kReadWrite);
    if (!id.ok()) return id.status();
  }
  for (uint64_t i = 0; i < kRegions; ++i) {
    out.paged.push_back({.base = reinterpret_cast<uintptr_t>(cache.part(i).data),
                         .block_bytes = kBlockBytes,
                         .stride = kBlockBytes,
                         .count = kCount});
  }
  auto metadata = owner.Metadata();
  if (!metadata.ok()) return metadata.status();
  out.metadata = *std::move(metadata);
  if (auto known = other.AddPeer(out.metadata); !known.ok()) return known.status();
  return out;
}

struct Agents {
  std::unique_ptr<Agent> owner;
  std::unique_ptr<Agent> other;
  static absl::StatusOr<Agents> Create() {
    Agents agents;
    for (auto [name, agent] :
         {std::pair{"owner", &agents.owner}, std::pair{"other", &agents.other}}) {
      AgentOptions options;
      options.name = name;
      auto made = Agent::Create(options);
      if (!made.ok()) return made.status();
      *agent = *std::move(made);
    }
    return agents;
  }
};

class DescriptionTest : public ::testing::TestWithParam<Registered> {
 protected:
  Cache cache_;
};

TEST_P(DescriptionTest, MetadataOfAMillionBlocksFitsInAPage) {
  ASSERT_TRUE(cache_.ok());
  ASSERT_OK_AND_ASSIGN(const Agents agents, Agents::Create());
  ASSERT_OK_AND_ASSIGN(const Described described,
                       Describe(*agents.owner, *agents.other, cache_, GetParam()));
  RecordProperty("metadata_bytes", static_cast<int>(described.metadata.size()));
  EXPECT_LE(described.metadata.size(), 4096u);
}

#if !KVXFER_SANITIZED  // whose shadows are resident too

// Resident pages that no file backs, in bytes.
uint64_t AnonymousRss() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "RssAnon:") continue;
    uint64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return 0;
}

TEST_P(DescriptionTest, AMillionBlocksTakeNoMemory) {
  ASSERT_TRUE(cache_.ok());
  ASSERT_GT(AnonymousRss(), 0u);
  // The first time pays for what is made once in a process. What grows with the cache would come
  // with every pair of agents: all of them stay, so that none takes the memory of another.
  constexpr size_t kRounds = 4;
  uint64_t least = std::numeric_limits<uint64_t>::max();
  std::vector<Agents> agents(kRounds);
  std::vector<Described> all(kRounds);
  for (size_t round = 0; round < kRounds; ++round) {
    ASSERT_OK_AND_ASSIGN(agents[round], Agents::Create());
    const uint64_t before = AnonymousRss();
    ASSERT_OK_AND_ASSIGN(all[round],
                         Describe(*agents[round].owner, *agents[round].other, cache_, GetParam()));
    const uint64_t after = AnonymousRss();
    least = std::min(least, after - std::min(before, after));
  }
  RecordProperty("rss_growth_bytes", static_cast<int>(least));
  EXPECT_LE(least, 64u * 1024);
}

#endif

INSTANTIATE_TEST_SUITE_P(Cache, DescriptionTest,
                         ::testing::Values(Registered::kWhole, Registered::kParts),
                         [](const auto& info) {
                           return info.param == Registered::kWhole ? "OneRegistration"
                                                                   : "ARegistrationEach";
                         });

}  // namespace
}  // namespace kvxfer::testing
