// Many registrations with the kernel's own verbs.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/agent.h"
#include "tests/support/open_files.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

// "0: rxe0: pd 1 cq 2 ... mr 3 ..."; -1: it does not say.
int RegionsOf(const std::string& device) {
  const std::string command = "rdma resource show " + device;
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), &::pclose);
  std::array<char, 512> line{};
  if (pipe == nullptr || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return -1;
  const std::string text = line.data();
  const size_t at = text.find(" mr ");
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + 4);
}

TEST(VerbsRegions, ThousandsLeaveNothingInTheKernel) {
  constexpr int kRegions = 2000;
  AgentOptions options{.name = "a", .backends = {"verbs"}};
  options.backend["verbs"]["devices"] = "rxe0";
  ASSERT_OK_AND_ASSIGN(const auto agent, Agent::Create(options));
  std::vector<std::byte> memory(8192);
  const MemorySpan span{.data = memory.data(), .bytes = memory.size()};
  const int regions = RegionsOf("rxe0");
  ASSERT_GE(regions, 0);
  const size_t files = OpenFiles();
  for (int i = 0; i < kRegions; ++i) {
    ASSERT_OK_AND_ASSIGN(const RegionId id, agent->RegisterMemory(span, Access::kReadWrite));
    if (i == 0) {
      EXPECT_EQ(RegionsOf("rxe0"), regions + 1);
    }
    ASSERT_OK(agent->DeregisterMemory(id, kAmple));
  }
  EXPECT_EQ(RegionsOf("rxe0"), regions);
  EXPECT_EQ(OpenFiles(), files);
}

}  // namespace
}  // namespace kvxfer::testing
