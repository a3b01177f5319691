// Attaches a Reason to a status.
//
// Thread-safety: any thread.

#ifndef KVXFER_CORE_BASE_REASON_H_
#define KVXFER_CORE_BASE_REASON_H_

#include "absl/status/status.h"
#include "kvxfer/reason.h"

namespace kvxfer {

// `status`, which must not be OK, with `reason` in place of one that it has.
absl::Status WithReason(absl::Status status, Reason reason);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_REASON_H_
