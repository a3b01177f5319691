// Who this process is, as its peers may check it, and proof that another process has ended.
//
// Thread-safety: free functions without state; they read /proc and may be called from any thread.

#ifndef KVXFER_CORE_BASE_HOST_IDENTITY_H_
#define KVXFER_CORE_BASE_HOST_IDENTITY_H_

#include "kvxfer/backend.h"

namespace kvxfer {

// Of this process. A field that cannot be read is empty or 0, which ProcessGone takes for unknown.
// start_time is 0 also inside a time namespace that shifts the boot clock, where start times
// cannot be compared.
HostIdentity ReadHostIdentity();

// True only with proof that the process of `them` has ended: same kernel and pid namespace as
// `us` (this process), and its pid is absent, a zombie, or belongs to a process that started at
// another time. False when it lives or when there is no proof.
bool ProcessGone(const HostIdentity& them, const HostIdentity& us);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_HOST_IDENTITY_H_
