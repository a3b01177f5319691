// The KV caches of an agent, by name, with what planning a transfer needs.
//
// Thread-safety: a plain value; threads share only constant tables.

#ifndef KVXFER_CORE_KV_KV_CACHE_TABLE_H_
#define KVXFER_CORE_KV_KV_CACHE_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/core/base/strings.h"

namespace kvxfer {

struct KvCacheInfo {
  uint64_t id = 0;  // random, unique to this registration
  KvLayout layout;
  std::vector<uint64_t> tensors;  // their addresses, which have passed CheckKvTensors

  bool operator==(const KvCacheInfo&) const = default;
};

using KvCacheTable = std::map<std::string, KvCacheInfo, std::less<>>;

// `whose` table is that of this agent.
inline constexpr std::string_view kThisAgent = "this agent";

inline absl::Status NoKvCache(std::string_view whose, std::string_view name) {
  return absl::NotFoundError(absl::StrCat(ToAbsl(whose), " has no KV cache \"", ToAbsl(name),
                                          "\"; register it, and take the metadata again"));
}

// NotFound: `whose` table has no such cache.
inline absl::StatusOr<const KvCacheInfo*> FindKvCache(const KvCacheTable& caches,
                                                      std::string_view name,
                                                      std::string_view whose) {
  const auto it = caches.find(name);
  return it != caches.end() ? absl::StatusOr<const KvCacheInfo*>(&it->second)
                            : NoKvCache(whose, name);
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_CACHE_TABLE_H_
