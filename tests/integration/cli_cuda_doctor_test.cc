// `kvxfer doctor` with the stand-in CUDA driver, with a broken one, and without a driver.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/integration/cli_cuda.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The status of doctor also depends on other problems of the machine that runs the tests.
nlohmann::json DoctorJson(const std::string& environment) {
  const Result result = RunWith(environment, {"doctor", "--json"});
  EXPECT_TRUE(result.json.is_object()) << result.out << result.err;
  return result.json;
}

nlohmann::json CheckOf(const nlohmann::json& report, const std::string& name) {
  for (const auto& check : report["checks"]) {
    if (check["name"] == name) return check;
  }
  ADD_FAILURE() << "no check " << name;
  return {};
}

std::string WhatOf(const nlohmann::json& report, const std::string& check, size_t finding = 0) {
  return CheckOf(report, check)["findings"][finding]["what"];
}

TEST(CudaDoctor, ShowsTheGpus) {
  const nlohmann::json report = DoctorJson("KVXFER_STANDIN_VERSION=12040");
  EXPECT_EQ(CheckOf(report, "cuda-driver")["severity"], "ok");
  EXPECT_THAT(WhatOf(report, "cuda-driver"),
              AllOf(HasSubstr("CUDA 12.4"), HasSubstr("/libcuda.so.1")));
  const nlohmann::json gpus = CheckOf(report, "gpus");
  EXPECT_EQ(gpus["severity"], "ok");
  ASSERT_EQ(gpus["findings"].size(), 2u);
  EXPECT_THAT(WhatOf(report, "gpus", 1),
              AllOf(HasSubstr("cuda:1 "), HasSubstr("16 GiB, compute capability 9.0")));
  EXPECT_EQ(CheckOf(report, "gpu-peers")["severity"], "ok");
  EXPECT_THAT(WhatOf(report, "gpu-peers"), HasSubstr("all 2 pairs"));
  EXPECT_EQ(CheckOf(report, "gpu-pinned")["severity"], "ok");
}

TEST(CudaDoctor, NamesGpusThatDoNotReachEachOther) {
  const nlohmann::json report = DoctorJson("KVXFER_STANDIN_DEVICES=3");
  EXPECT_EQ(CheckOf(report, "gpu-peers")["severity"], "warning");
  EXPECT_THAT(WhatOf(report, "gpu-peers"), AllOf(HasSubstr("cuda:0>2"), HasSubstr("cuda:2>1"),
                                                 Not(HasSubstr("access: cuda:0>1"))));
  const nlohmann::json one = DoctorJson("CUDA_VISIBLE_DEVICES=1");
  EXPECT_EQ(CheckOf(one, "gpus")["findings"].size(), 1u);
  EXPECT_EQ(CheckOf(one, "gpu-peers")["severity"], "n/a");
}

TEST(CudaDoctor, SaysWhetherWorkersOfOneGpuTakeTurns) {
  EXPECT_THAT(WhatOf(DoctorJson("KVXFER_STANDIN_MPS=0"), "gpus"), HasSubstr("no MPS: workers"));
  EXPECT_THAT(WhatOf(DoctorJson("KVXFER_STANDIN_MPS=1"), "gpus"), HasSubstr(", MPS: workers"));
}

TEST(CudaDoctor, SaysWhyADriverCannotBeUsed) {
  const Result result =
      RunWith("KVXFER_STANDIN_INIT=CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", {"doctor", "--json"});
  EXPECT_EQ(result.status, ExitStatus::kFailed);
  EXPECT_EQ(CheckOf(result.json, "cuda-driver")["severity"], "problem");
  EXPECT_THAT(WhatOf(result.json, "cuda-driver"), HasSubstr("SYSTEM_DRIVER_MISMATCH"));
  EXPECT_EQ(CheckOf(result.json, "gpus")["severity"], "n/a");
}

TEST(CudaDoctor, SaysWhatTheDriverRefuses) {
  const nlohmann::json pinned =
      DoctorJson("KVXFER_STANDIN_FAIL=cuMemHostRegister_v2:0:CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(CheckOf(pinned, "gpu-pinned")["severity"], "warning");
  EXPECT_THAT(WhatOf(pinned, "gpu-pinned"), HasSubstr("16 MiB cannot be pinned"));
  // Without a context nothing can be pinned; the other checks still report.
  const nlohmann::json context =
      DoctorJson("KVXFER_STANDIN_FAIL=cuDevicePrimaryCtxRetain:0:CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(CheckOf(context, "gpu-pinned")["severity"], "warning");
  EXPECT_EQ(CheckOf(context, "gpus")["findings"].size(), 2u);
  const nlohmann::json peers =
      DoctorJson("KVXFER_STANDIN_FAIL=cuDeviceCanAccessPeer:0:CUDA_ERROR_UNKNOWN");
  EXPECT_EQ(CheckOf(peers, "gpu-peers")["severity"], "warning");
  const nlohmann::json old = DoctorJson("KVXFER_STANDIN_COMPUTE=70");
  EXPECT_EQ(CheckOf(old, "gpus")["severity"], "warning");
}

nlohmann::json PathOf(const std::string& environment, const std::string& backend) {
  Program server({"serve", "--listen", "127.0.0.1:0", "--json"});
  const auto line = nlohmann::json::parse(server.ReadLine(), nullptr, false);
  if (!line.is_object()) {
    ADD_FAILURE() << server.err();
    return {};
  }
  const Result result = RunWith(environment, {"doctor", line["serving"], "--json"});
  EXPECT_EQ(result.status, ExitStatus::kOk) << result.err;
  for (const auto& path : result.json["paths"]) {
    if (path["backend"] == backend) return path;
  }
  ADD_FAILURE() << "no " << backend << " in " << result.out;
  return {};
}

// The backend for GPU memory alone is tried with GPU memory.
TEST(CudaDoctor, MeasuresTheWayBetweenGpus) {
  const nlohmann::json path = PathOf("", "cuda_ipc");
  EXPECT_EQ(path["reached"], true) << path;
  EXPECT_EQ(path["rails"], 1);
  EXPECT_GT(path["rtt_p50_us"], 0);
  EXPECT_GT(path["gbps"], 0);
  EXPECT_EQ(path["here"]["paths"][0]["connected"], true) << path;
  const nlohmann::json without = PathOf("KVXFER_STANDIN_DEVICES=0", "cuda_ipc");
  EXPECT_EQ(without["severity"], "n/a") << without;
  EXPECT_EQ(without["reached"], false);
  EXPECT_THAT(without["why"].get<std::string>(), HasSubstr("memory of cuda:0 cannot be used"));
}

TEST(CudaDoctor, IsQuietWithoutADriver) {
  const nlohmann::json none = DoctorJson("KVXFER_STANDIN_DEVICES=0");
  for (const char* check : {"gpus", "gpu-peers", "gpu-ipc", "gpu-pinned", "gpu-ordering"}) {
    EXPECT_EQ(CheckOf(none, check)["severity"], "n/a") << check;
  }
  if (HasGpu()) GTEST_SKIP() << "this host has a CUDA driver";
  const Result text = RunWith(kNoStandin, {"doctor"});
  EXPECT_THAT(text.out, HasSubstr("no CUDA driver"));
  EXPECT_THAT(text.out, HasSubstr("not applicable"));
}

}  // namespace
}  // namespace kvxfer::cli
