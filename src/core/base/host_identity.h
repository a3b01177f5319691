// Identifies this process for its peers, and proves that another process on this host has ended.
//
// Thread-safety: free functions without state; they read /proc and may be called from any thread.

#ifndef KVXFER_CORE_BASE_HOST_IDENTITY_H_
#define KVXFER_CORE_BASE_HOST_IDENTITY_H_

#include "kvxfer/backend.h"

namespace kvxfer {

// The identity of this process. A field that cannot be read is empty or 0, and ProcessGone treats
// it as unknown. start_time is also 0 inside a time namespace that shifts the boot clock, because
// start times cannot be compared there.
HostIdentity ReadHostIdentity();

// True only if it is proved that the process `them` has ended: it has the kernel and pid namespace
// of `us` (this process), and its pid does not exist, is a zombie, or belongs to a process that
// started at another time. False if `them` is alive or nothing is proved.
bool ProcessGone(const HostIdentity& them, const HostIdentity& us);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_HOST_IDENTITY_H_
