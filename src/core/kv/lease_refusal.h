// Attaches to a status the code with which an owner refused a read, in addition to the status code
// and message.
//
// Thread-safety: any thread.

#ifndef KVXFER_CORE_KV_LEASE_REFUSAL_H_
#define KVXFER_CORE_KV_LEASE_REFUSAL_H_

#include "absl/status/status.h"
#include "kvxfer/kv_cache.h"

namespace kvxfer {

// `status`, which must not be OK, with `refusal` attached for LeaseRefusalOf.
absl::Status WithRefusal(absl::Status status, KvLeaseRefusal refusal);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_LEASE_REFUSAL_H_
