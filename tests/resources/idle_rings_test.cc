// What the rings of an idle peer on the same host hold: three pages, whatever the handshake sent.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/agent.h"
#include "src/transport/ring_pair.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

// Of all mappings of ring memfds in this process.
struct RingMappings {
  size_t count = 0;
  uint64_t bytes = 0;     // mapped
  uint64_t resident = 0;  // each page once, however many mappings share it
  uint64_t largest = 0;

  static RingMappings Now() {
    RingMappings out;
    std::ifstream smaps("/proc/self/smaps");
    bool ring = false;
    for (std::string line; std::getline(smaps, line);) {
      // Only the first line of a mapping has its path; those that follow are "Word: number kB".
      if (line.find('-') < line.find(':')) ring = line.find("kvxfer-rings") != std::string::npos;
      if (!ring) continue;
      const auto value = [&line](const char* word) -> uint64_t {
        return line.starts_with(word) ? 1024 * std::stoull(line.substr(line.find(':') + 1)) : 0;
      };
      const uint64_t size = value("Size:");
      out.count += size > 0 ? 1 : 0;
      out.bytes += size;
      out.largest = std::max(out.largest, size);
      out.resident += value("Pss:");
    }
    return out;
  }
};

uint64_t WholePages(uint64_t bytes) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

AgentOptions Options(const std::string& name) {
  AgentOptions options;
  options.name = name;
  options.backends = {"shm"};
  return options;
}

TEST(IdleRings, APeerThatHasSaidLittleHoldsThreePages) {
  constexpr size_t kPeers = 40;
  const RingMappings before = RingMappings::Now();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Agent> hub, Agent::Create(Options("hub")));
  std::vector<std::unique_ptr<Agent>> peers;
  for (size_t i = 0; i < kPeers; ++i) {
    const std::string name = "p" + std::to_string(i);
    ASSERT_OK_AND_ASSIGN(peers.emplace_back(), Agent::Create(Options(name)));
    ASSERT_OK(Introduce(*hub, *peers.back()));
    ASSERT_OK(Introduce(*peers.back(), *hub));
    ASSERT_OK_AND_ASSIGN(const Transfer there, hub->Notify(name, "are you there?"));
    ASSERT_OK(there.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Transfer back, peers.back()->Notify("hub", "I am"));
    ASSERT_OK(back.Wait(kAmple));
  }
  const RingMappings now = RingMappings::Now();
  // Each side of a connection is in this process; a pair has one connection, or two if both
  // dialled.
  const size_t mappings = now.count - before.count;
  const uint64_t each = WholePages(net::RingPair::kSmallBytes);
  ASSERT_GE(mappings, 2 * kPeers);
  ASSERT_LE(mappings, 4 * kPeers);
  EXPECT_EQ(now.largest, each) << "the handshake makes rings grow";
  EXPECT_EQ(now.bytes - before.bytes, mappings * each);
  EXPECT_LE(now.resident - before.resident, mappings / 2 * each);
  RecordProperty("bytes_of_a_connection", static_cast<int>(each));
}

}  // namespace
}  // namespace kvxfer::testing
