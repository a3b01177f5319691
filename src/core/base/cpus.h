// How many CPUs this process may use.
#ifndef KVXFER_CORE_BASE_CPUS_H_
#define KVXFER_CORE_BASE_CPUS_H_

namespace kvxfer {

// By the affinity of the calling thread; at least 1.
int UsableCpus();

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_CPUS_H_
