// ucx in a process that has another UCX already, as Python wheels bring it. Runs where the
// environment says which (tests/support/ucx-wheel).
#include <dlfcn.h>
#include <ucp/api/ucp.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "src/backends/plugins.h"
#include "src/backends/registry.h"
#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

const char* OtherPath() { return std::getenv("KVXFER_OTHER_UCX"); }

std::vector<Flavour> Flavours() {
  if (OtherPath() == nullptr) return {};
  return {UcxFlavour("Tcp", "tcp,self"), UcxFlavour("Posix", "posix,cma,self")};
}

// The other UCX, with a worker of its own. Stays loaded.
class OtherUcx {
 public:
  explicit OtherUcx(const char* path) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_AM | UCP_FEATURE_RMA;
    EXPECT_EQ(Its<decltype(ucp_init_version)>("ucp_init_version")(UCP_API_MAJOR, UCP_API_MINOR,
                                                                  &params, nullptr, &context_),
              UCS_OK);
    const ucp_worker_params_t worker{};
    EXPECT_EQ(Its<decltype(ucp_worker_create)>("ucp_worker_create")(context_, &worker, &worker_),
              UCS_OK);
  }
  ~OtherUcx() {
    if (worker_ != nullptr) Its<decltype(ucp_worker_destroy)>("ucp_worker_destroy")(worker_);
    if (context_ != nullptr) Its<decltype(ucp_cleanup)>("ucp_cleanup")(context_);
  }

  bool works() const { return worker_ != nullptr; }
  std::string version() {
    return Its<decltype(ucp_get_version_string)>("ucp_get_version_string")();
  }
  void Progress() { Its<decltype(ucp_worker_progress)>("ucp_worker_progress")(worker_); }

 private:
  template <typename Function>
  Function* Its(const char* name) {
    return reinterpret_cast<Function*>(dlsym(library_, name));
  }

  void* const library_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
};

// "UCX 1.13.1 from /usr/lib/libucp.so.0".
std::string LibraryOfPlugin() {
  for (const BackendOrigin& origin : ListBackends({})) {
    if (origin.name != "ucx" || origin.file.empty()) continue;
    const auto plugin = LoadPlugin(origin.name, origin.file);
    EXPECT_OK(plugin);
    if (plugin.ok()) return (*plugin)->library_version();
  }
  ADD_FAILURE() << "there is no plugin of ucx";
  return "";
}

using Beside = BackendConformance;
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Beside);
INSTANTIATE_TEST_SUITE_P(Ucx, Beside, ::testing::ValuesIn(Flavours()), FlavourName);

// Expect each to be used by who brought it: neither takes the other's functions.
TEST_P(Beside, AnotherOneUnderAnotherName) {
  OtherUcx other(OtherPath());
  ASSERT_TRUE(other.works()) << OtherPath();
  const std::string ours = LibraryOfPlugin();
  EXPECT_EQ(ours.find(OtherPath()), std::string::npos) << ours;
  EXPECT_EQ(ours.find(other.version()), std::string::npos)
      << ours << ": the test wants one of another version";
  ASSERT_NO_FATAL_FAILURE(Start(256 * 4096));
  Pattern(1).Fill(local_->bytes());
  for (uint64_t transfer = 1; transfer <= 4; ++transfer) {
    ASSERT_TRUE(pair_->PostAll(Stream(OpKind::kWrite, transfer, 256, 4096)));
    ASSERT_TRUE(pair_->Until([&] {
      other.Progress();
      return pair_->AllEnded() && in().immediates.size() >= 256 * transfer;
    }));
  }
  EXPECT_EQ(Pattern(1).Mismatch(remote_->bytes()), kNoMismatch);
}

// Expect it to be refused where the other one's functions stand in for its own.
TEST_P(Beside, AnotherOneForAllToSee) {
  // The child begins anew, without any UCX.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto refused = [&] {
    if (dlopen(OtherPath(), RTLD_NOW | RTLD_GLOBAL) == nullptr) std::_Exit(1);
    const absl::Status why = Party::Make(GetParam(), "alone").status();
    std::fputs(std::string(why.message()).c_str(), stderr);
    std::_Exit(0);  // without what the two would do to each other at the end
  };
  EXPECT_EXIT(refused(), ::testing::ExitedWithCode(0), "ucx: .*libXcp.*RTLD_GLOBAL.*libucp");
}

}  // namespace
}  // namespace kvxfer::testing
