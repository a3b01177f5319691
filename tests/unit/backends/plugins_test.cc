// Backends that are loaded at run time: what is found where, what is refused, with which words. The
// plugins are those of tests/plugins.

#include "src/backends/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "kvxfer/backend.h"
#include "kvxfer/log.h"
#include "kvxfer/plugin.h"
#include "kvxfer/version.h"
#include "src/backends/plugin_files.h"
#include "src/backends/registry.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_folder.h"

namespace kvxfer::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;

AgentOptions WithPlugins(const std::string& folder = KVXFER_TEST_PLUGINS) {
  AgentOptions options;
  options.name = "plugins";
  options.plugin_path = {folder};
  return options;
}

absl::StatusOr<std::unique_ptr<Backend>> Make(std::string_view name, const AgentOptions& options) {
  return MakeBackend(name, {.options = options, .incarnation = Incarnation::Random(), .host = {}});
}

std::string FileOf(const std::string& name, const std::string& folder = KVXFER_TEST_PLUGINS) {
  return folder + "/libkvxfer_backend_" + name + ".so";
}

class PluginFilesTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(FileOf(name, folder_)) << text;
  }
  // The first `bytes` of a plugin that is in order.
  void WriteCut(const std::string& name, size_t bytes) const {
    std::ifstream whole(FileOf("wrapped"), std::ios::binary);
    std::string head(bytes, '\0');
    whole.read(head.data(), static_cast<std::streamsize>(bytes));
    ASSERT_TRUE(whole);
    Write(name, head);
  }

  const TestFolder test_folder_;
  const std::string folder_ = test_folder_.path();
};

TEST(Plugins, AreMadeByTheirNameAlsoDecorated) {
  const AgentOptions options = WithPlugins();
  const auto plain = Make("wrapped", options);
  ASSERT_OK(plain);
  EXPECT_EQ((*plain)->name(), "wrapped");
  const auto faulty = Make("faulty:wrapped", options);
  ASSERT_OK(faulty);
  EXPECT_EQ((*faulty)->name(), "faulty:wrapped");
  EXPECT_EQ((*faulty)->Describe().devices, (*plain)->Describe().devices);
}

TEST(Plugins, AreLoadedOnceAlsoByManyThreads) {
  std::vector<const BackendPlugin*> loaded(8);
  {
    std::vector<std::jthread> threads;
    threads.reserve(loaded.size());
    for (const BackendPlugin*& out : loaded) {
      threads.emplace_back([&out] {
        const auto plugin = LoadPlugin("wrapped", FileOf("wrapped"));
        if (plugin.ok()) out = *plugin;
      });
    }
  }
  ASSERT_NE(loaded.front(), nullptr);
  EXPECT_THAT(loaded, ::testing::Each(loaded.front()));
  EXPECT_EQ(loaded.front()->library_version(), "Wrapped 1.2 from nowhere");
}

TEST(Plugins, LogWhereTheProgramLogs) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel level, std::string_view line) {
    EXPECT_EQ(level, LogLevel::kInfo);
    lines.emplace_back(line);
  });
  const AgentOptions options = WithPlugins();
  EXPECT_OK(Make("wrapped", options));  // the level is kWarning
  SetLogLevel(LogLevel::kInfo);
  EXPECT_OK(Make("wrapped", options));
  SetLogLevel(LogLevel::kWarning);
  EXPECT_OK(Make("wrapped", options));
  EXPECT_TRUE(FlushLog(std::chrono::seconds(20)));
  SetLogSink({});
  EXPECT_THAT(lines, ::testing::ElementsAre("wrapped is made for plugins"));
}

const std::string kOtherAbi = "interface " + std::to_string(kPluginAbi + 1);

struct Refusal {
  const char* name;
  absl::StatusCode code;
  std::vector<const char*> words;  // beside the file
};

class PluginRefusals : public ::testing::TestWithParam<Refusal> {};

TEST_P(PluginRefusals, SayWhichFileWhyAndWhatToDo) {
  const Refusal& refusal = GetParam();
  const auto made = Make(refusal.name, WithPlugins());
  EXPECT_TRUE(Fails(made, refusal.code, {FileOf(refusal.name).c_str()}));
  for (const char* word : refusal.words) {
    EXPECT_THAT(std::string(made.status().message()), HasSubstr(word));
  }
}

constexpr auto kUnavailable = absl::StatusCode::kUnavailable;
INSTANTIATE_TEST_SUITE_P(
    All, PluginRefusals,
    ::testing::Values(
        Refusal{"other_abi", kUnavailable, {"9.8.7", kOtherAbi.c_str(), kVersion, "same version"}},
        Refusal{"other_version", kUnavailable, {"0.0.1", kVersion, "same version"}},
        Refusal{"other_toolchain", kUnavailable, {"g++ 4, old strings", "build both with one"}},
        Refusal{"other_magic", kUnavailable, {"no plugin of kvxfer", "remove it"}},
        Refusal{"no_factory", kUnavailable, {"no factory", "KVXFER_BACKEND_PLUGIN"}},
        Refusal{"no_entry", kUnavailable, {"no function kvxfer_backend_plugin", "remove it"}},
        Refusal{"misnamed", kUnavailable, {"\"somebody\"", "libkvxfer_backend_somebody.so"}},
        Refusal{"selfnamed", absl::StatusCode::kInternal, {"\"loopback\"", "\"selfnamed\""}},
        Refusal{"throwing", absl::StatusCode::kInternal, {"threw an exception"}},
        Refusal{"missing_library",
                kUnavailable,
                {"missing_library: libkvxfer_test_absent.so not found", "install it"}},
        Refusal{"old_library",
                kUnavailable,
                {"undefined symbol: kvxfer_test_new", "of another version"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_F(PluginFilesTest, WhatIsNoLibraryIsRefused) {
  Write("text", "not a library, as a failed download leaves it\n");
  Write("empty", "");
  ASSERT_NO_FATAL_FAILURE(WriteCut("cut", 100));
  fs::create_directory(FileOf("folder", folder_));
  fs::create_symlink("/nowhere", FileOf("dangling", folder_));
  const AgentOptions options = WithPlugins(folder_);
  for (const char* name : {"text", "empty", "cut"}) {
    EXPECT_TRUE(Fails(Make(name, options), absl::StatusCode::kUnavailable,
                      {FileOf(name, folder_).c_str(), "not a shared library of this machine"}));
  }
  EXPECT_TRUE(Fails(Make("folder", options), absl::StatusCode::kUnavailable,
                    {FileOf("folder", folder_).c_str(), "cannot be loaded"}));
  EXPECT_TRUE(Fails(Make("dangling", options), absl::StatusCode::kNotFound, {"dangling"}));
}

TEST_F(PluginFilesTest, TheFirstFolderThatHasItCounts) {
  Write("wrapped", "");
  AgentOptions options = WithPlugins(folder_);
  options.plugin_path.emplace_back(KVXFER_TEST_PLUGINS);
  EXPECT_TRUE(Fails(Make("wrapped", options), absl::StatusCode::kUnavailable, {folder_.c_str()}));
  fs::remove(FileOf("wrapped", folder_));
  EXPECT_OK(Make("wrapped", options));
}

TEST_F(PluginFilesTest, AFolderThatIsNotThereIsSaid) {
  const AgentOptions options = WithPlugins(folder_ + "/none");
  const std::initializer_list<const char*> words = {folder_.c_str(), "No such file",
                                                    "KVXFER_PLUGIN_PATH"};
  EXPECT_TRUE(Fails(Make("wrapped", options), absl::StatusCode::kUnavailable, words));
  // What is built in needs no folder.
  EXPECT_OK(Make("loopback", options));
  Write("file", "");
  EXPECT_TRUE(Fails(Make("wrapped", WithPlugins(FileOf("file", folder_))),
                    absl::StatusCode::kUnavailable, {"Not a directory"}));
}

TEST_F(PluginFilesTest, NamesDoNotLeadOutOfTheFolder) {
  fs::create_directory(folder_ + "/libkvxfer_backend_x");
  fs::create_symlink(FileOf("wrapped"), folder_ + "/libkvxfer_backend_x/evil.so");
  for (const char* name : {"x/evil", "../wrapped", "Wrapped", "a b", ".", "faulty:x/evil"}) {
    EXPECT_TRUE(Fails(Make(name, WithPlugins(folder_)), absl::StatusCode::kNotFound, {"known"}));
  }
}

TEST_F(PluginFilesTest, AreListedByNameAndWhatIsNoneIsNot) {
  Write("zeta", "");
  Write("alpha", "");
  Write("tcp", "");  // built in: that one is taken
  Write("No", "");
  std::ofstream(folder_ + "/libkvxfer_backend_beta.so.1") << "";
  std::ofstream(folder_ + "/libother.so") << "";
  const AgentOptions options = WithPlugins(folder_);
  std::vector<std::string> others;
  for (const BackendOrigin& origin : ListBackends(options)) {
    EXPECT_EQ(origin.name == "tcp" && !(origin.built_in && origin.file.empty()), false);
    if (!origin.file.starts_with(folder_)) continue;
    EXPECT_EQ(origin.file, FileOf(origin.name, folder_));
    others.push_back(origin.name);
  }
  EXPECT_THAT(others, ::testing::ElementsAre("alpha", "zeta"));
  EXPECT_TRUE(Fails(Make("smoke", options), absl::StatusCode::kNotFound,
                    {"smoke", "loopback, cuda_ipc, shm", "alpha, zeta", "faulty:"}));
}

TEST(PluginFolders, AreThoseThatWereNamedAndThoseBesideTheProgram) {
  const std::vector<std::string> folders = PluginFolders(WithPlugins("/opt/mine/"));
  EXPECT_EQ(folders.front(), "/opt/mine/");
  const fs::path program = fs::canonical("/proc/self/exe");
  EXPECT_THAT(folders, Contains((program.parent_path().parent_path() / "lib/kvxfer").string()));
  EXPECT_EQ(folders.back().rfind("/kvxfer"), folders.back().size() - 7);
}

TEST(KnownBackends, OneThatIsNotInstalledSaysWhereItWasLookedForAndIsNoNews) {
  const AgentOptions options = WithPlugins();
  // Of its message, what holds whichever are built here.
  EXPECT_TRUE(Fails(FindPlugin("absent", options), absl::StatusCode::kNotFound,
                    {"libkvxfer_backend_absent.so", KVXFER_TEST_PLUGINS, "/lib/kvxfer"}));
  for (const KnownBackend& known : KnownBackends()) {
    if (IsBuiltIn(known.name)) continue;
    EXPECT_THAT(std::string(known.remedy), HasSubstr("apt install")) << known.name;
  }
  for (const BackendOrigin& origin : ListBackends(options)) {
    if (origin.built_in || !origin.file.empty()) continue;
    const std::string file = "libkvxfer_backend_" + origin.name + ".so";
    EXPECT_TRUE(Fails(Make(origin.name, options), absl::StatusCode::kUnimplemented,
                      {file.c_str(), KVXFER_TEST_PLUGINS, "/lib/kvxfer", "apt install"}));
  }
}

TEST(KnownBackends, StandInTheOrderOfPreference) {
  std::vector<std::string> defaults;
  for (const KnownBackend& known : KnownBackends()) {
    if (known.by_default == ByDefault::kAlways) defaults.emplace_back(known.name);
  }
  EXPECT_THAT(defaults, ::testing::ElementsAre("loopback", "cuda_ipc", "shm", "verbs", "tcp"));
  // Before tcp.
  if (HasEfaDevice()) defaults.insert(defaults.end() - 1, "libfabric");
  EXPECT_EQ(defaults, DefaultBackends());
}

TEST_F(PluginFilesTest, LibfabricIsTriedWhereThereIsAnEfaDevice) {
  const fs::path class_folder = fs::path(folder_) / "sys/class/infiniband";
  EXPECT_FALSE(HasEfaDevice(folder_));
  for (const auto& [name, vendor] : {std::pair("mlx5_0", "0x15b3"), {"rdmap0s6", "0x1d0f"}}) {
    fs::create_directories(class_folder / name / "device");
    std::ofstream(class_folder / name / "device/vendor") << vendor << "\n";
    EXPECT_EQ(HasEfaDevice(folder_), std::string_view(name) == "rdmap0s6");
  }
}

TEST(Version, OfTheHeadersIsThatOfTheBuild) { EXPECT_STREQ(kVersion, KVXFER_VERSION); }

}  // namespace
}  // namespace kvxfer::testing
