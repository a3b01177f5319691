// Cross-memory attach: process_vm_writev and process_vm_readv on the peer's private memory.
//
// Thread-safety: none; the caller orders the calls.

#ifndef KVXFER_BACKENDS_SHM_ATTACH_H_
#define KVXFER_BACKENDS_SHM_ATTACH_H_

#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/shm/wire.h"
#include "src/transport/host/peer_process.h"

namespace kvxfer::shm {

// The pieces of one system call. Adjacent pieces are joined, on each side independently. An object
// is 32 KiB, so it is reused.
class AttachBatch {
 public:
  void Clear() { locals_ = remotes_ = bytes_ = 0; }
  // False: the batch is full, and is unchanged.
  bool Add(uint64_t local, uint64_t remote, uint64_t bytes);
  size_t bytes() const { return bytes_; }

  // Moves the batch in the direction of `kind`. Returns how many bytes from its front were moved,
  // at least 1. Unavailable: the process has exited. FailedPrecondition: the first byte that was
  // not moved is not mapped, or not with the needed rights, on the side that the error names. A
  // write is visible to the peer on return.
  absl::StatusOr<size_t> Move(OpKind kind, uint32_t pid) const;

 private:
  static constexpr size_t kMaxPieces = 1024;  // UIO_MAXIOV

  std::array<iovec, kMaxPieces> local_;
  std::array<iovec, kMaxPieces> remote_;
  size_t locals_ = 0;
  size_t remotes_ = 0;
  size_t bytes_ = 0;
};

// OK: the word at `address` in process `pid` is `value`, the random one that its agent stored there
// for this connection. Unavailable: it is not, or no longer: the process has exited, has executed
// another program (exec), or has dropped the connection.
absl::Status CheckProbe(uint32_t pid, uint64_t address, uint64_t value);

// Tries cross-memory attach on the peer's probe words, in both directions. PermissionDenied says
// what forbids it and what to do.
absl::Status ProbeAttach(const PeerProcess& peer, const OfferBody& offer);

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_ATTACH_H_
