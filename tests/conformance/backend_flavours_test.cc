// What the conformance suite of the backend interface runs over.

#include "tests/conformance/backend_conformance.h"

namespace kvxfer::testing {

INSTANTIATE_TEST_SUITE_P(Plain, BackendConformance, ::testing::ValuesIn(PlainFlavours()),
                         FlavourName);
INSTANTIATE_TEST_SUITE_P(Addresses, BackendConformance, ::testing::Values(TcpAddressesFlavour()),
                         FlavourName);
INSTANTIATE_TEST_SUITE_P(Faulty, BackendConformance, ::testing::ValuesIn(FaultyFlavours(3)),
                         FlavourName);

}  // namespace kvxfer::testing
