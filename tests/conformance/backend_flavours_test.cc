// What the conformance suite of the backend interface runs over.

#include <vector>

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {
namespace {

// With a transport that copies between processes beside the one for messages; and by sockets.
std::vector<Flavour> UcxFlavours() {
  if (!HasUcx()) return {};
  return {UcxFlavour("UcxCma", "posix,cma,self"), UcxSocketFlavour()};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Plain, BackendConformance, ::testing::ValuesIn(PlainFlavours()),
                         FlavourName);
INSTANTIATE_TEST_SUITE_P(Ringless, BackendConformance, ::testing::ValuesIn(RinglessFlavours()),
                         FlavourName);
INSTANTIATE_TEST_SUITE_P(Addresses, BackendConformance, ::testing::Values(TcpAddressesFlavour()),
                         FlavourName);
INSTANTIATE_TEST_SUITE_P(Ucx, BackendConformance, ::testing::ValuesIn(UcxFlavours()), FlavourName);
INSTANTIATE_TEST_SUITE_P(Faulty, BackendConformance, ::testing::ValuesIn(FaultyFlavours(2)),
                         FlavourName);

}  // namespace kvxfer::testing
