// Copies the ops of one connection with this process's CPU: small ones inside Post, others in
// slices, in the order of posting.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_SHM_COPIER_H_
#define KVXFER_BACKENDS_SHM_COPIER_H_

#include <cstdint>
#include <list>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/shm/attach_threads.h"
#include "src/core/base/keeping_allocator.h"
#include "src/transport/event_queue.h"
#include "src/transport/host/peer_process.h"

namespace kvxfer::shm {

inline constexpr size_t kMaxOpBytes = 1024 * 1024;
inline constexpr size_t kMaxOpPieces = 1024;
inline constexpr size_t kSliceBytes = 256 * 1024;  // copied before looking at anything else

class Copier {
 public:
  // All pointers must outlive the copier. Completions of `endpoint` go to `events`. All copiers of
  // a backend share `crew`.
  Copier(Endpoint* endpoint, EventQueue<std::string>* events, AttachThreads* threads)
      : endpoint_(endpoint), events_(events), threads_(threads) {}

  // Call it before the first op. `socket` is the connection's, borrowed.
  void SetPeer(const PeerProcess* peer, int socket) {
    peer_ = peer;
    socket_ = socket;
  }

  // Call it before the first op on attached memory. The word shows whether the peer's memory still
  // belongs to the agent that was connected to.
  void SetProbe(uint64_t address, uint64_t value) {
    probe_address_ = address;
    probe_value_ = value;
  }

  // False: too much waits already. Done: it was small, and nothing waited.
  Posted Post(const Op& op);
  // Copies up to `budget` bytes; or, if the next bytes are in attached memory, at most one slice
  // per thread. Returns the number of bytes.
  size_t Step(size_t budget);
  bool idle() const { return queue_.empty(); }

  // Completes the ops of `transfer`, or all ops, with `why`. After the return none of their bytes
  // are read or written.
  void Drop(uint64_t transfer, const absl::Status& why);
  void DropAll(const absl::Status& why);

 private:
  // An op, without its blocks: after its completion nothing may look at them.
  struct Queued {
    explicit Queued(const Op& op);

    OpKind kind;
    bool cached;  // copied by ordinary stores
    uint32_t rail;
    uint64_t id;
    uint64_t transfer;
    RunWalk walk;  // at the first byte that was not copied
  };

  // InvalidArgument or PermissionDenied: the op leaves its regions or lacks a right.
  absl::Status Check(const Op& op) const;
  std::optional<absl::Status> Advance(size_t budget, size_t& copied);
  absl::StatusOr<size_t> Move(Queued& queued, size_t budget);
  size_t CopyMapped(Queued& queued, size_t budget);
  absl::StatusOr<size_t> MoveAttached();
  void FillBatch();
  absl::StatusOr<size_t> MoveBatch(OpKind kind) const;
  absl::Status CheckPeer() const;
  void Complete(uint64_t id, uint32_t rail, absl::Status status);

  Endpoint* const endpoint_;
  EventQueue<std::string>* const events_;
  AttachThreads* const threads_;
  const PeerProcess* peer_ = nullptr;
  int socket_ = -1;
  uint64_t probe_address_ = 0;
  uint64_t probe_value_ = 0;
  std::list<Queued, KeepingAllocator<Queued>> queue_;
  uint64_t queued_bytes_ = 0;  // of the queue, not copied
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_COPIER_H_
