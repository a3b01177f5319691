// The libfabric backend over providers that need no device. Compiled where it is built in.

#include <cstdlib>
#include <string>

#include "src/backends/libfabric/frames.h"
#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

// Before libfabric looks, which is when the first backend is made.
const bool kClosingIsProof = ::setenv("FI_SHM_DISABLE_CMA", "1", 1) == 0;

Flavour Over(std::string name, std::string provider) {
  return {.name = std::move(name),
          .backend = "libfabric",
          .memory = MemoryType::kAttached,
          .faults = {},
          .provider = std::move(provider)};
}

std::vector<Flavour> LibfabricFlavours() { return {Over("LibfabricNet", "net")}; }

INSTANTIATE_TEST_SUITE_P(Libfabric, BackendConformance, ::testing::ValuesIn(LibfabricFlavours()),
                         FlavourName);

TEST(Libfabric, TellsThePathItTakes) {
  auto pair = BackendPair::Make(LibfabricFlavours().front());
  ASSERT_NE(pair, nullptr);
  EXPECT_NE(pair->out().endpoint->Describe().find("net:"), std::string::npos);
}

TEST(Libfabric, AProviderThatIsNotThereIsExplained) {
  const absl::Status why = Party::Make(Over("", "carrier_pigeon"), "alone").status();
  EXPECT_TRUE(Fails(why, absl::StatusCode::kUnavailable, {"carrier_pigeon", "fi_info"}));
}

TEST(Libfabric, AProviderThatCannotBeClosedIsRefused) {
  const absl::Status why = Party::Make(Over("", "tcp;ofi_rxm"), "alone").status();
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition, {"closed"}));
}

TEST(Libfabric, PeersOfAnotherProviderAreNotReached) {
  ASSERT_TRUE(kClosingIsProof);
  ASSERT_OK_AND_ASSIGN(auto a, Party::Make(LibfabricFlavours()[0], "a"));
  ASSERT_OK_AND_ASSIGN(auto b, Party::Make(Over("", "shm"), "b"));
  EXPECT_TRUE(Fails(a->backend().Reachable(b->backend().Address(), b->host()),
                    absl::StatusCode::kFailedPrecondition, {"net", "shm"}));
}

TEST(Libfabric, FramesSurviveTheWayAndDamageIsNoticed) {
  using libfabric::Answer;
  const Answer answer{
      .rail = 3, .error = "why", .address = std::string("a\0b", 3), .sink = 7, .sink_key = 9};
  std::vector<std::byte> bytes = libfabric::Encode(answer);
  const auto decoded = libfabric::Decode(bytes);
  ASSERT_OK(decoded);
  const Answer* const got = std::get_if<Answer>(&*decoded);
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(got->rail, 3);
  EXPECT_EQ(got->error, "why");
  EXPECT_EQ(got->address, answer.address);
  EXPECT_EQ(got->sink, 7u);
  EXPECT_EQ(got->sink_key, 9u);
  for (size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_FALSE(libfabric::Decode(std::span(bytes).first(n)).ok()) << n;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(libfabric::Decode(bytes).ok());
  bytes[0] = std::byte{99};
  EXPECT_FALSE(libfabric::Decode(bytes).ok());
}

}  // namespace
}  // namespace kvxfer::testing
