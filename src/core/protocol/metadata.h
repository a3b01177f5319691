// What peers must know about an agent, and its serialised form: a small envelope (magic, version,
// length, XXH3-64) around the protobuf of metadata.proto.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_PROTOCOL_METADATA_H_
#define KVXFER_CORE_PROTOCOL_METADATA_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "kvxfer/types.h"
#include "src/core/kv/kv_cache_table.h"

namespace kvxfer {

struct AgentMetadata {
  std::string name{};
  Incarnation incarnation{};
  uint16_t min_version = 0;
  uint16_t max_version = 0;
  HostIdentity host{};
  struct BackendAddress {
    std::string backend{};
    std::string address{};
    bool operator==(const BackendAddress&) const = default;
  };
  std::vector<BackendAddress> backends{};
  struct Region {
    RemoteRegion region{};
    std::map<std::string, std::string> keys{};  // backend → Registration::key, if not empty
    bool staging = false;  // holds the staging buffers that the agent lends (wire_format.h)
  };
  std::vector<Region> regions{};
  uint32_t last_region = 0;  // highest id given out so far
  uint64_t revision = 0;     // increases with every change of regions or caches
  KvCacheTable kv_caches{};
};

// The largest metadata that is accepted, in bytes.
inline constexpr size_t kMaxMetadataBytes = 20 + (64 << 20);

std::string EncodeMetadata(const AgentMetadata& metadata);

// InvalidArgument: not metadata, truncated, damaged, or a field out of bounds (the message names
// it). FailedPrecondition: no common protocol version.
absl::StatusOr<AgentMetadata> DecodeMetadata(std::string_view bytes);
// Checks the envelope only: the blob is complete and undamaged. Errors as for DecodeMetadata.
absl::Status CheckWhole(std::string_view bytes);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_METADATA_H_
