// `kvxfer bench --memory cuda:N` and other subcommands that move GPU memory, over the stand-in CUDA
// driver (two GPUs that reach each other).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/integration/bench_schema.h"
#include "tests/integration/cli_cuda.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Arguments = std::vector<std::string>;

Arguments Bench(const std::string& memory, const std::string& backend, Arguments more) {
  Arguments arguments = {"bench", "--json", "--memory", memory, "--backend", backend};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct MemoryCase {
  const char* name;
  const char* memory;
  const char* here;
  const char* there;
  Arguments more;
};

const Arguments kSmall = {"--total", "1M", "-s", "4K,64K", "-n", "3"};

class CudaBench : public ::testing::TestWithParam<std::tuple<const char*, MemoryCase>> {};

// There is a result only if every received byte of the first round was right.
TEST_P(CudaBench, MovesAndVerifies) {
  const auto& [backend, memory] = GetParam();
  const Result result = RunProgram(Bench(memory.memory, backend, memory.more));
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(SchemaErrors(BenchSchema(), result.json), IsEmpty()) << result.out;
  for (const json& row : result.json["results"]) {
    EXPECT_EQ(row["backend"], backend);
    EXPECT_EQ(row["memory"], memory.here);
    EXPECT_EQ(row["memory_target"], memory.there);
    EXPECT_GT(row["gb_per_s"], 0);
    if (row["workload"] == "latency") continue;
    EXPECT_GT(row["device_copy_gbps"], 0);
    EXPECT_GT(row["device_scattered_gbps"], 0);
  }
}

std::vector<MemoryCase> AnyBackend() {
  return {{"OneGpu", "cuda:0", "cuda:0", "cuda:0", kSmall},
          {"TwoGpus", "cuda:0,cuda:1", "cuda:0", "cuda:1", kSmall},
          {"Read",
           "cuda:1",
           "cuda:1",
           "cuda:1",
           {"--op", "read", "--total", "1M", "-s", "16K", "-n", "3"}},
          {"BothWays",
           "cuda",
           "cuda:0",
           "cuda:0",
           {"-b", "--total", "1M", "-s", "4K", "-n", "3", "--threads", "2"}},
          {"Latency", "cuda:0", "cuda:0", "cuda:0", {"--latency", "-n", "20"}},
          {"Model",
           "cuda:0",
           "cuda:0",
           "cuda:0",
           {"--model", "gpt-oss-120b", "--tokens", "100", "--requests", "3", "--tp", "8"}},
          {"Peers",
           "cuda:0",
           "cuda:0",
           "cuda:0",
           {"--peers", "3", "--total", "3M", "-s", "16K", "-n", "2"}}};
}

// Only staging moves these.
std::vector<MemoryCase> ToAndFromTheHost() {
  return {{"FromHost", "host,cuda:1", "mapped", "cuda:1", kSmall},
          {"ToHost", "cuda:0,attached", "cuda:0", "attached", kSmall},
          {"ReadToHost",
           "mapped,cuda:0",
           "mapped",
           "cuda:0",
           {"--op", "read", "--total", "1M", "-s", "16K", "-n", "3"}}};
}

std::string NameOf(const ::testing::TestParamInfo<CudaBench::ParamType>& info) {
  const auto& [backend, memory] = info.param;
  const std::string name = backend;
  return (name == "cuda_ipc" ? "CudaIpc"
          : name == "tcp"    ? "Tcp"
                             : "Shm") +
         std::string(memory.name);
}

INSTANTIATE_TEST_SUITE_P(Gpus, CudaBench,
                         ::testing::Combine(::testing::Values("tcp", "cuda_ipc"),
                                            ::testing::ValuesIn(AnyBackend())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Host, CudaBench,
                         ::testing::Combine(::testing::Values("tcp", "shm"),
                                            ::testing::ValuesIn(ToAndFromTheHost())),
                         NameOf);

TEST(CudaBenchProgram, PrintsThePartOfTheCopyForPeople) {
  const Result result = RunProgram(
      {"bench", "--memory", "cuda:0", "--backend", "tcp", "--total", "1M", "-s", "16K", "-n", "2"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("of scattered blocks, cuda:0 memory"), HasSubstr("% of device copy"),
                    HasSubstr("device copy: one large copy "), HasSubstr("by the copy kernel, ")));
}

TEST(CudaBenchProgram, MovesToAServersGpu) {
  Program server({"serve", "--listen", "127.0.0.1:0", "--json"});
  const json line = json::parse(server.ReadLine(), nullptr, false);
  ASSERT_TRUE(line.is_object()) << server.err();
  const Result result =
      RunProgram({"bench", line["serving"], "--memory", "host,cuda:1", "--backend", "tcp",
                  "--total", "1M", "-s", "16K", "-n", "2", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  const json row = result.json["results"][0];
  EXPECT_EQ(row["memory_target"], "cuda:1");
  // The GPU may be in another host.
  EXPECT_FALSE(row.contains("device_copy_gbps"));
  const Result missing = RunProgram({"bench", line["serving"], "--memory", "host,cuda:9",
                                     "--backend", "tcp", "--total", "1M", "-s", "16K"});
  EXPECT_EQ(missing.status, ExitStatus::kUsage) << missing.err;
  EXPECT_THAT(missing.err, HasSubstr("9"));
  EXPECT_EQ(missing.out, "");
}

// libfabric asks its providers for GPU memory only if CUDA is in use when an agent is created.
TEST(CudaBenchProgram, AServerUsesCudaFromItsStart) {
  Program server({"serve", "--listen", "127.0.0.1:0", "--json"});
  server.ReadLine();
  const Result maps = RunShell("cat /proc/" + std::to_string(server.pid()) + "/maps");
  EXPECT_THAT(maps.out, HasSubstr("libcuda.so.1"));
}

// For each pair of memory kinds: which backend moves it, and whether it is staged.
TEST(CudaBenchProgram, ExplainsTheWayOfGpuMemory) {
  Program server({"serve", "--listen", "127.0.0.1:0", "--json"});
  const json line = json::parse(server.ReadLine(), nullptr, false);
  ASSERT_TRUE(line.is_object()) << server.err();
  const Result result = RunProgram({"explain", line["serving"], "--memory", "cuda:0", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  for (const char* side : {"here", "there"}) {
    std::map<std::string, json> ways;
    for (const json& one : result.json[side]["memory"]) {
      ways[one["local"].get<std::string>() + ">" + one["remote"].get<std::string>()] = one;
    }
    EXPECT_EQ(ways["cuda>cuda"]["backend"], "cuda_ipc") << result.out;
    EXPECT_EQ(ways["cuda>cuda"]["staged"], false);
    EXPECT_EQ(ways["host>cuda"]["backend"], "shm");
    EXPECT_EQ(ways["host>cuda"]["staged"], true);
  }
  const Result host = RunProgram({"explain", line["serving"], "--json"});
  EXPECT_EQ(host.json["here"]["memory"], json::array());
  const Result tcp =
      RunProgram({"explain", line["serving"], "--backend", "tcp", "--memory", "cuda:0,host"});
  EXPECT_THAT(tcp.out, HasSubstr("tcp, staged"));
}

TEST(CudaBenchProgram, PingsOverGpuMemory) {
  const Result result = RunProgram({"ping", "--memory", "cuda:0,cuda:1", "--backend", "tcp",
                                    "--iters", "3", "--interval", "0", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["count"], 3);
}

TEST(CudaBenchProgram, MovesKvCachesOfUnlikeInstances) {
  for (const char* backend : {"tcp", "cuda_ipc"}) {
    const Result result =
        RunProgram(Bench("cuda:0,cuda:1", backend,
                         {"--prefill-tp", "2", "--decode-tp", "1", "--model", "llama-3.1-8b",
                          "--tokens", "64", "--decode-layout", "NHD", "--duration", "50ms"}));
    ASSERT_EQ(result.status, ExitStatus::kOk) << backend << ": " << result.err;
    EXPECT_GT(result.json["results"][0]["write_blocks"]["gb_per_s"], 0);
  }
  // Transfers between GPUs of one host use cuda_ipc.
  const Result result =
      RunProgram({"bench", "--memory", "cuda:0", "--prefill-tp", "1", "--decode-tp", "1", "--model",
                  "llama-3.1-8b", "--tokens", "32", "--duration", "20ms", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["backend"], "cuda_ipc");
}

// One line says what is wrong, on either side, before data is moved.
struct Refusal {
  const char* name;
  const char* environment;
  Arguments arguments;
  ExitStatus status;
  const char* says;
};

class CudaRefusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(CudaRefusals, SaysWhatIsWrong) {
  const Refusal& c = GetParam();
  const Result result = RunWith(c.environment, c.arguments);
  EXPECT_EQ(result.status, c.status) << result.err;
  EXPECT_THAT(result.err, AllOf(StartsWith("kvxfer: "), HasSubstr(c.says)));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    All, CudaRefusals,
    ::testing::Values(
        Refusal{"NoSuchDevice",
                "",
                {"bench", "--memory", "cuda:7"},
                ExitStatus::kUsage,
                "no CUDA device 7: this process sees 2"},
        Refusal{"NoSuchMemory", "", {"bench", "--memory", "gpu"}, ExitStatus::kUsage, "cuda:N"},
        Refusal{"TooMuch",
                "KVXFER_STANDIN_MEMORY=67108864",
                {"bench", "--memory", "cuda:1", "--total", "48M", "-s", "64K"},
                ExitStatus::kUsage,
                "cuda:1 has 64 MiB; use a smaller --total"},
        Refusal{"NoDevice",
                "KVXFER_STANDIN_DEVICES=0",
                {"bench", "--memory", "cuda:0"},
                ExitStatus::kNotUsable,
                "memory of cuda:0 cannot be used"},
        Refusal{"WrongDriver",
                "KVXFER_STANDIN_INIT=CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
                {"bench", "--memory", "host,cuda:0", "--json"},
                ExitStatus::kNotUsable,
                "memory of cuda:0 cannot be used"},
        Refusal{"NoRoom",
                "KVXFER_STANDIN_FAIL=cuMemAlloc_v2:0:CUDA_ERROR_OUT_OF_MEMORY",
                {"bench", "--memory", "cuda:0", "--json", "--backend", "tcp"},
                ExitStatus::kNotUsable,
                "of cuda:0: "},
        Refusal{"Demo",
                "KVXFER_STANDIN_DEVICES=0",
                {"demo", "--memory", "cuda"},
                ExitStatus::kNotUsable,
                "memory of cuda:0 cannot be used"},
        Refusal{"DemoRanks",
                "KVXFER_STANDIN_DEVICES=0",
                {"demo", "--memory", "cuda", "--prefill-tp", "2"},
                ExitStatus::kNotUsable,
                "memory of cuda:0 cannot be used"},
        Refusal{"DemoDevice",
                "",
                {"demo", "--memory", "host,cuda:2"},
                ExitStatus::kUsage,
                "no CUDA device 2: this process sees 2"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(CudaWithoutDriver, IsOneLine) {
  if (HasGpu()) GTEST_SKIP() << "this host has a CUDA driver";
  for (const Arguments& arguments :
       {Arguments{"bench", "--memory", "cuda:0"}, Arguments{"demo", "--memory", "cuda"},
        Arguments{"ping", "--memory", "cuda:0"}}) {
    const Result result = RunWith(kNoStandin, arguments);
    EXPECT_EQ(result.status, ExitStatus::kNotUsable) << result.err;
    EXPECT_THAT(result.err, AllOf(StartsWith("kvxfer: "), HasSubstr("libcuda.so.1")));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  // Everything else works.
  EXPECT_EQ(RunWith(kNoStandin, {"bench", "--total", "1M", "-s", "64K", "-n", "2"}).status,
            ExitStatus::kOk);
}

}  // namespace
}  // namespace kvxfer::cli
