// The backend `loopback`: AgentOptions::backend["loopback"], KVXFER_LOOPBACK_....
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_LOOPBACK_OPTIONS_H_
#define KVXFER_BACKENDS_LOOPBACK_OPTIONS_H_

#include <cstdint>

#include "kvxfer/backend_options.h"

namespace kvxfer::loopback {

struct LoopbackOptions {
  uint32_t rails = 2;  // queues to each peer in this process, 1 to 16
};

template <typename Io>
void Fields(Io& io, OptionRef<Io, LoopbackOptions> options) {
  io.Number("rails", options.rails, 1, 16);
}

}  // namespace kvxfer::loopback

#endif  // KVXFER_BACKENDS_LOOPBACK_OPTIONS_H_
