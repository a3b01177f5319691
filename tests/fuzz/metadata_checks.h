// What must hold for any bytes that come in as metadata. Used by the fuzz target and, on a small
// corpus, by the unit tests.
#ifndef KVXFER_TESTS_FUZZ_METADATA_CHECKS_H_
#define KVXFER_TESTS_FUZZ_METADATA_CHECKS_H_

#include <xxhash.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "src/core/base/strings.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer::testing {

// A whole envelope around `inside`, which need not be a protobuf.
inline std::string SealMetadata(std::string_view inside) {
  std::string bytes("KVXM\x01\0\0\0", 8);
  const auto append = [&](uint64_t value, int count) {
    for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  };
  append(inside.size(), 4);
  append(XXH3_64bits(inside.data(), inside.size()), 8);
  bytes += inside;
  return bytes;
}

inline bool InBounds(const AgentMetadata& metadata) {
  std::set<RegionId> ids;
  for (const AgentMetadata::Region& entry : metadata.regions) {
    const RemoteRegion& region = entry.region;
    if (region.id == RegionId::kNone || static_cast<uint32_t>(region.id) > metadata.last_region ||
        !ids.insert(region.id).second || region.bytes == 0 || region.rkey == 0 ||
        region.base + region.bytes < region.base || region.kind > MemoryKind::kCuda ||
        region.access > Access::kReadWrite || region.device_id < 0) {
      return false;
    }
  }
  return CheckName("agent", metadata.name).ok() && !metadata.incarnation.IsZero() &&
         metadata.min_version <= metadata.max_version;
}

// Metadata is refused with a reason, or is in bounds and comes back the same when encoded again.
inline bool MetadataHolds(std::string_view bytes) {
  const absl::StatusOr<AgentMetadata> metadata = DecodeMetadata(bytes);
  if (!metadata.ok()) return !metadata.status().message().empty();
  const std::string encoded = EncodeMetadata(*metadata);
  const absl::StatusOr<AgentMetadata> again = DecodeMetadata(encoded);
  return InBounds(*metadata) && again.ok() && EncodeMetadata(*again) == encoded;
}

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_FUZZ_METADATA_CHECKS_H_
