// The libfabric backend beside what the suites say of it. Compiled where it is built in; what needs
// a provider of the real library, or of the fake one, runs where the environment says which.

#include <cstdlib>
#include <string>

#include "src/backends/libfabric/frames.h"
#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

Flavour Over(std::string provider) {
  Flavour flavour;
  flavour.backend = "libfabric";
  flavour.memory = MemoryType::kAttached;
  flavour.provider = std::move(provider);
  return flavour;
}

std::vector<std::string> Only(const std::string& provider) {
  const std::vector<Flavour> all = LibfabricFlavours();
  if (all.empty() || all.front().provider != provider) return {};
  return {provider};
}

// The real library, with its providers that need no device.
class LibfabricNet : public ::testing::TestWithParam<std::string> {
 protected:
  // Before libfabric looks, which is when the first backend is made.
  void SetUp() override { ASSERT_EQ(::setenv("FI_SHM_DISABLE_CMA", "1", 1), 0); }
};
// The entries of ctest say over what; see tests/fabric/fabric.cmake.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(LibfabricNet);
INSTANTIATE_TEST_SUITE_P(Real, LibfabricNet, ::testing::ValuesIn(Only("net")));

TEST_P(LibfabricNet, TellsThePathItTakes) {
  auto pair = BackendPair::Make(Over("net"));
  ASSERT_NE(pair, nullptr);
  EXPECT_NE(pair->out().path().find("net:"), std::string::npos);
}

TEST_P(LibfabricNet, AProviderThatIsNotThereIsExplained) {
  const absl::Status why = Party::Make(Over("carrier_pigeon"), "alone").status();
  EXPECT_TRUE(Fails(why, absl::StatusCode::kUnavailable, {"carrier_pigeon", "fi_info"}));
}

TEST_P(LibfabricNet, AProviderThatCannotBeClosedIsRefused) {
  const absl::Status why = Party::Make(Over("tcp;ofi_rxm"), "alone").status();
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition, {"closed"}));
}

TEST_P(LibfabricNet, PeersOfAnotherProviderAreNotReached) {
  ASSERT_OK_AND_ASSIGN(auto a, Party::Make(Over("net"), "a"));
  ASSERT_OK_AND_ASSIGN(auto b, Party::Make(Over("shm"), "b"));
  EXPECT_TRUE(Fails(a->backend().Reachable(b->backend().Describe().address, b->host()),
                    absl::StatusCode::kFailedPrecondition, {"net", "shm"}));
}

TEST(Libfabric, FramesSurviveTheWayAndDamageIsNoticed) {
  using libfabric::Answer;
  const Answer answer{.rail = 3,
                      .life = 5,
                      .error = "why",
                      .address = std::string("a\0b", 3),
                      .sink = 7,
                      .sink_key = 9};
  std::string bytes = libfabric::Encode(answer);
  const auto decode = [&] { return libfabric::Decode(std::as_bytes(std::span(bytes))); };
  const auto decoded = decode();
  ASSERT_OK(decoded);
  const Answer* const got = std::get_if<Answer>(&*decoded);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->rail, 3);
  EXPECT_EQ(got->life, 5u);
  EXPECT_EQ(got->error, "why");
  EXPECT_EQ(got->address, answer.address);
  EXPECT_EQ(got->sink, 7u);
  EXPECT_EQ(got->sink_key, 9u);
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(libfabric::Decode(std::as_bytes(std::span(bytes).first(n))).ok()) << n;
  }
  bytes.push_back(0);
  EXPECT_FALSE(decode().ok());
  bytes[0] = 99;
  EXPECT_FALSE(decode().ok());
}

}  // namespace
}  // namespace kvxfer::testing
