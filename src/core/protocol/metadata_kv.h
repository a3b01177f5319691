// KV caches within metadata. Pure.

#ifndef KVXFER_CORE_PROTOCOL_METADATA_KV_H_
#define KVXFER_CORE_PROTOCOL_METADATA_KV_H_

#include "absl/status/statusor.h"
#include "src/core/kv/kv_cache_table.h"

namespace kvxfer {

namespace proto {
class Metadata;
}

void EncodeKvCaches(const KvCacheTable& caches, proto::Metadata& out);

// InvalidArgument: one that RegisterKvCache would not have taken (named, with the field), or too
// many.
absl::StatusOr<KvCacheTable> DecodeKvCaches(const proto::Metadata& in);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_METADATA_KV_H_
