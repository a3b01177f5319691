// A status that carries the code with which an owner refused a read, beside the usual status code
// and message.
//
// Thread-safety: any thread.

#ifndef KVXFER_CORE_KV_LEASE_REFUSAL_H_
#define KVXFER_CORE_KV_LEASE_REFUSAL_H_

#include "absl/status/status.h"
#include "kvxfer/kv_cache.h"

namespace kvxfer {

// `status` with its refusal, for LeaseRefusalOf. It must not be OK.
absl::Status WithRefusal(absl::Status status, KvLeaseRefusal refusal);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_LEASE_REFUSAL_H_
