// What a peer must know of an agent, and its form outside the process: a small envelope (magic,
// length, XXH3-64) around the protobuf of metadata.proto. Pure.

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
    std::map<std::string, std::string> keys{};  // backend → Registration::Key(), where not empty
    bool staging = false;  // made for the slots that the agent lends (wire_format.h)
  };
  std::vector<Region> regions{};
  uint32_t last_region = 0;  // highest id given out when this was taken
  uint64_t revision = 0;     // rises within the incarnation, whenever regions or caches change
  KvCacheTable kv_caches{};
};

// The most that is read as metadata.
inline constexpr size_t kMaxMetadataBytes = 20 + (64 << 20);

std::string EncodeMetadata(const AgentMetadata& metadata);

// InvalidArgument: not metadata, truncated, damaged, or a field out of bounds (named);
// FailedPrecondition: no common protocol version.
absl::StatusOr<AgentMetadata> DecodeMetadata(std::string_view bytes);
// The envelope alone: whether all of it is there and undamaged. As DecodeMetadata.
absl::Status CheckWhole(std::string_view bytes);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_METADATA_H_
