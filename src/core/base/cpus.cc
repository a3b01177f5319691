#include "src/core/base/cpus.h"

#include <sched.h>

namespace kvxfer {

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace kvxfer
