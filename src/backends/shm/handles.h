// Handles that close themselves.

#ifndef KVXFER_BACKENDS_SHM_HANDLES_H_
#define KVXFER_BACKENDS_SHM_HANDLES_H_

#include "src/core/base/own_fd.h"

namespace kvxfer::shm {

using UniqueFd = OwnFd;

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_HANDLES_H_
