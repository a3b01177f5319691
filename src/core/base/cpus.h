// How many CPUs this process may use.
#ifndef KVXFER_CORE_BASE_CPUS_H_
#define KVXFER_CORE_BASE_CPUS_H_

namespace kvxfer {

// The number of CPUs in the calling thread's affinity mask; at least 1. Ignores cgroup quotas.
int UsableCpus();

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_CPUS_H_
