// A peer's region as staging knows it. It takes the place of a backend's key in a Run.

#ifndef KVXFER_AGENT_STAGING_STAGED_KEY_H_
#define KVXFER_AGENT_STAGING_STAGED_KEY_H_

#include <cstdint>

#include "kvxfer/backend.h"

namespace kvxfer {

struct StagedKey final : RemoteKey {
  StagedKey(uint32_t region_rkey, bool region_reached)
      : rkey(region_rkey), reached(region_reached) {}
  const uint32_t rkey;
  const bool reached;  // by the backends that take host memory
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_STAGED_KEY_H_
