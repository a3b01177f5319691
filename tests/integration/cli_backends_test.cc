// `kvxfer backends`: what a person and a program get to read of what is built in, of plugins, and
// of what is not here.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kvxfer/plugin.h"
#include "src/cli/common/exit_status.h"
#include "tests/integration/cli_cuda.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using ::testing::HasSubstr;

// The program with the tests' plugins in its path, and the stand-in CUDA driver.
Result RunBackends(const std::string& arguments) {
  return RunShell("env KVXFER_PLUGIN_PATH=" KVXFER_TEST_PLUGINS " \"$0\" backends " + arguments);
}

nlohmann::json Find(const nlohmann::json& report, const std::string& name) {
  for (const auto& backend : report["backends"]) {
    if (backend["name"] == name) return backend;
  }
  return {};
}

TEST(Backends, JsonTellsOfEachWhatItIsAndWhereFrom) {
  const Result result = RunBackends("--json");
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["version"], kVersion);
  EXPECT_EQ(result.json["toolchain"], PluginToolchain());
  EXPECT_EQ(result.json["folders"][0], KVXFER_TEST_PLUGINS);

  const auto tcp = Find(result.json, "tcp");
  EXPECT_EQ(tcp["usable"], true);
  EXPECT_EQ(tcp["built_in"], true);
  EXPECT_EQ(tcp["default"], true);
  EXPECT_TRUE(tcp["file"].is_null());
  EXPECT_EQ(tcp["capabilities"]["arrival"], "immediate");
  EXPECT_EQ(tcp["capabilities"]["memory"], nlohmann::json::array({"host"}));
  EXPECT_EQ(tcp["capabilities"]["needs_remote_cpu"], true);
  EXPECT_EQ(Find(result.json, "shm")["capabilities"]["arrival"], "copied");
  const auto cuda_ipc = Find(result.json, "cuda_ipc");
  EXPECT_EQ(cuda_ipc["usable"], true) << cuda_ipc;
  EXPECT_EQ(cuda_ipc["default"], true);
  EXPECT_EQ(cuda_ipc["capabilities"]["memory"], nlohmann::json::array({"cuda"}));

  const auto wrapped = Find(result.json, "wrapped");
  EXPECT_EQ(wrapped["usable"], true);
  EXPECT_EQ(wrapped["built_in"], false);
  EXPECT_EQ(wrapped["default"], false);
  EXPECT_EQ(wrapped["file"], KVXFER_TEST_PLUGINS "/libkvxfer_backend_wrapped.so");
  EXPECT_EQ(wrapped["version"], "Wrapped 1.2 from nowhere");
  EXPECT_EQ(wrapped["devices"], nlohmann::json::array({"memory of this process"}));
}

TEST(Backends, WhatCannotBeUsedSaysWhy) {
  const Result result = RunBackends("--json");
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  const auto expect_why = [&](const std::string& name, const std::string& why) {
    const auto backend = Find(result.json, name);
    ASSERT_FALSE(backend.is_null()) << name;
    EXPECT_EQ(backend["usable"], false) << name;
    EXPECT_TRUE(backend["capabilities"].is_null()) << name;
    EXPECT_THAT(backend["why"].get<std::string>(), HasSubstr(why));
  };
  expect_why("other_toolchain", "g++ 4, old strings");
  expect_why("missing_library", "libkvxfer_test_absent.so not found");
  // It is a plugin that is in order: the host is not.
  expect_why("unusable", "this host has no such device");
  EXPECT_EQ(Find(result.json, "unusable")["version"], std::string("kvxfer ") + kVersion);
}

TEST(Backends, CudaIpcNeedsADriver) {
  if (HasGpu()) GTEST_SKIP() << "this host has a CUDA driver";
  const Result report = RunWith(kNoStandin, {"backends", "--json"});
  ASSERT_EQ(report.status, ExitStatus::kOk) << report.err;
  const auto backend = Find(report.json, "cuda_ipc");
  EXPECT_EQ(backend["usable"], false);
  EXPECT_TRUE(backend["capabilities"].is_null());
  EXPECT_THAT(backend["why"].get<std::string>(), HasSubstr("libcuda.so.1"));
  const Result named = RunWith(kNoStandin, {"backends", "tcp", "cuda_ipc"});
  EXPECT_EQ(named.status, ExitStatus::kNotUsable);
  EXPECT_THAT(named.out, HasSubstr("cuda_ipc: not usable"));
  EXPECT_THAT(named.err, HasSubstr("cuda_ipc is not usable here"));
  const Result doctor = RunWith(kNoStandin, {"doctor"});
  EXPECT_THAT(doctor.out, HasSubstr("cuda_ipc (this host has no CUDA driver"));
}

TEST(Backends, TextIsATableAndALineOrMoreForEach) {
  const Result result = RunBackends("");
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(
      result.out,
      HasSubstr("\nwrapped: completion: write with immediate; memory: host; rails: keep order"));
  EXPECT_THAT(result.out, HasSubstr("\n  memory of this process\n"));
  EXPECT_THAT(result.out, HasSubstr("\nno_entry: not usable: " KVXFER_TEST_PLUGINS));
  EXPECT_THAT(result.out, HasSubstr("\nshm: completion: copied by the initiator"));
  EXPECT_THAT(result.out,
              HasSubstr("\ncuda_ipc: completion: copied by the initiator; memory: cuda"));
}

TEST(Backends, NamedOnesDecideTheStatus) {
  EXPECT_EQ(RunBackends("tcp wrapped").status, ExitStatus::kOk);
  const Result absent = RunBackends("tcp unusable");
  EXPECT_EQ(absent.status, ExitStatus::kNotUsable);
  EXPECT_THAT(absent.out, HasSubstr("unusable: not usable"));
  EXPECT_THAT(absent.err, HasSubstr("unusable is not usable here"));
  const Result unknown = RunBackends("smoke");
  EXPECT_EQ(unknown.status, ExitStatus::kUsage);
  EXPECT_THAT(unknown.err, HasSubstr("no backend 'smoke'"));
  EXPECT_THAT(unknown.err, HasSubstr("wrapped"));
  // A port that is in use is no matter of a backend's.
  EXPECT_EQ(RunShell("env KVXFER_LISTEN=127.0.0.1:1 \"$0\" backends tcp").status, ExitStatus::kOk);
}

// Doctor makes each of them once.
TEST(Backends, DoctorKnowsThem) {
  const Result result =
      RunShell("env KVXFER_PLUGIN_PATH=" KVXFER_TEST_PLUGINS " \"$0\" doctor --json");
  EXPECT_THAT(result.out, HasSubstr("wrapped"));
  EXPECT_THAT(result.out, HasSubstr("unusable ("));
}

}  // namespace
}  // namespace kvxfer::cli
