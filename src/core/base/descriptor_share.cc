#include "src/core/base/descriptor_share.h"

#include <sys/resource.h>

#include <algorithm>

namespace kvxfer {

size_t DescriptorsForUnproved() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMostForUnproved;
  return std::clamp<size_t>(limit.rlim_cur / 4, kLeastForUnproved, kMostForUnproved);
}

}  // namespace kvxfer
