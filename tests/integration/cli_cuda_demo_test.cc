// `kvxfer demo --memory cuda`, over the stand-in CUDA driver.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/cli_cuda.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

// A small model whose cache holds fewer than two requests, so that blocks are used again.
Arguments SmallDemo(const Arguments& more) {
  Arguments arguments = {"demo",     "--model", "gpt-oss-120b", "--requests", "3",
                         "--tokens", "250",     "--cache-size", "30M",        "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct DemoCase {
  const char* name;
  Arguments arguments;
  const char* here;
  const char* there;
};

class CudaDemo : public ::testing::TestWithParam<DemoCase> {};

TEST_P(CudaDemo, VerifiesEveryRequest) {
  const Result result = RunProgram(SmallDemo(GetParam().arguments));
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["ok"], true);
  EXPECT_EQ(result.json["verified"], 3);
  EXPECT_EQ(result.json["guard_zones"], "intact");
  EXPECT_EQ(result.json["memory"], GetParam().here);
  EXPECT_EQ(result.json["memory_decode"], GetParam().there);
  EXPECT_THAT(result.json["path"].get<std::string>(), StartsWith(GetParam().arguments[1]));
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaDemo,
    ::testing::Values(
        // Each side has its own GPU.
        DemoCase{"Tcp", {"--backend", "tcp", "--memory", "cuda"}, "cuda:0", "cuda:1"},
        DemoCase{"CudaIpc", {"--backend", "cuda_ipc", "--memory", "cuda"}, "cuda:0", "cuda:1"},
        DemoCase{"OneGpu", {"--backend", "cuda_ipc", "--memory", "cuda:1"}, "cuda:1", "cuda:1"},
        DemoCase{"Packed",
                 {"--backend", "cuda_ipc", "--memory", "cuda", "--gap", "0"},
                 "cuda:0",
                 "cuda:1"},
        DemoCase{"FromHost", {"--backend", "shm", "--memory", "host,cuda:0"}, "mapped", "cuda:0"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CudaDemoProgram, FailsWhenOneByteIsWrong) {
  const Result result =
      RunProgram(SmallDemo({"--backend", "tcp", "--memory", "cuda", "--corrupt"}));
  EXPECT_EQ(result.status, ExitStatus::kFailed) << result.err;
  EXPECT_EQ(result.json["verified"], 2);
  EXPECT_THAT(result.err, HasSubstr("request 1"));
}

// More ranks, of two different instances, than GPUs.
TEST(CudaDemoProgram, RanksTakeGpusInTurn) {
  for (const char* backend : {"tcp", "cuda_ipc"}) {
    const Arguments ranks = {"--backend",
                             backend,
                             "--memory",
                             "cuda",
                             "--prefill-tp",
                             "2",
                             "--decode-tp",
                             "1",
                             "--decode-block-tokens",
                             "32"};
    const Result result = RunProgram(SmallDemo(ranks));
    ASSERT_EQ(result.status, ExitStatus::kOk) << backend << ": " << result.err;
    EXPECT_EQ(result.json["verified"], 3) << result.out;
    Arguments wrong = ranks;
    wrong.emplace_back("--corrupt");
    EXPECT_EQ(RunProgram(SmallDemo(wrong)).status, ExitStatus::kFailed) << backend;
  }
}

}  // namespace
}  // namespace kvxfer::cli
