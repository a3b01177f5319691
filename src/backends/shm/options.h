// How the backend `shm` copies: AgentOptions::backend["shm"], KVXFER_SHM_....
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_SHM_OPTIONS_H_
#define KVXFER_BACKENDS_SHM_OPTIONS_H_

#include <cstdint>

#include "kvxfer/backend_options.h"

namespace kvxfer::shm {

struct ShmOptions {
  // Threads that share large copies to and from attached memory, 1 to 8. 0: 2 if more than one
  // CPU is usable, else 1. With more than one, a copy takes CPUs from the application while it
  // lasts, as far as these are idle.
  uint32_t copy_threads = 0;
};

template <typename Io>
void Fields(Io& io, OptionRef<Io, ShmOptions> options) {
  io.Number("copy_threads", options.copy_threads, 0, 8);
}

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_OPTIONS_H_
