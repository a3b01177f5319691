// Encodes and decodes the KV caches within metadata.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_PROTOCOL_METADATA_KV_H_
#define KVXFER_CORE_PROTOCOL_METADATA_KV_H_

#include "absl/status/statusor.h"
#include "src/core/kv/kv_cache_table.h"

namespace kvxfer {

namespace proto {
class Metadata;
}

void EncodeKvCaches(const KvCacheTable& caches, proto::Metadata& out);

// InvalidArgument: a cache that RegisterKvCache would refuse (the message names it and the field),
// or too many caches.
absl::StatusOr<KvCacheTable> DecodeKvCaches(const proto::Metadata& in);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_METADATA_KV_H_
