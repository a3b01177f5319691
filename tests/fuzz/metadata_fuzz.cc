// The input as it is, and as the inside of an envelope whose checksum holds.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tests/fuzz/metadata_checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (!kvxfer::testing::MetadataHolds(bytes)) std::abort();
  if (!kvxfer::testing::MetadataHolds(kvxfer::testing::SealMetadata(bytes))) std::abort();
  return 0;
}
