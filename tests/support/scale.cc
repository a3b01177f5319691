#include "tests/support/scale.h"

namespace kvxfer::testing {

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("KVXFER_TEST_SEED");
    return text == nullptr ? uint64_t{1} : std::strtoull(text, nullptr, 10);
  }();
  return seed;
}

}  // namespace kvxfer::testing
