#include "kvxfer/types.h"

#include "src/core/base/random.h"

namespace kvxfer {

Incarnation Incarnation::Random() {
  Incarnation incarnation;
  // All zeros means "none", so that value is never used.
  while (incarnation.IsZero()) FillRandom(incarnation.bytes);
  return incarnation;
}

std::string Incarnation::ToString() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const uint8_t byte : bytes) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

}  // namespace kvxfer
