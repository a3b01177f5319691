// The memfds that rings of messages lie in, and the bells that wake their sides. What comes from a
// peer is checked before it is touched.
//
// Thread-safety: functions without state.

#ifndef KVXFER_TRANSPORT_HOST_RING_FILE_H_
#define KVXFER_TRANSPORT_HOST_RING_FILE_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/base/own_fd.h"
#include "src/transport/host/mapping.h"

namespace kvxfer {

// A sealed memfd of that size, all zero.
absl::StatusOr<OwnFd> MakeRingFile(size_t bytes);

// OK: the file is a memfd of exactly that size, and nobody can shrink it (which would raise SIGBUS
// here), grow it, or change its seals. InvalidArgument: it is not.
absl::Status CheckRingFile(int file, size_t bytes);

// Maps all of a file that has passed the check, with its pages.
absl::StatusOr<Mapping> MapRingFile(int file, size_t bytes);

// Whether writing to `bell` can only ring: a write to anything but an eventfd might raise SIGPIPE
// or change a file.
bool RingsWithoutHarm(int bell);
// Wakes the process that the bell belongs to; one system call.
void RingBell(int bell);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_RING_FILE_H_
