// The staging buffers of a peer on this host, mapped and pinned here: GPUs of this process copy to
// and from them, so that staged bytes go over no wire and through no CPU.
//
// Both processes are in one domain of trust: either may write to the buffers at any time, and punch
// holes into the memory behind them.
//
// Pinning takes some 10 ms and may wait for work in CUDA streams, so it happens on a thread of its
// own; until then, and if it fails, staged bytes go over the wire.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_STAGING_PEER_STAGE_H_
#define KVXFER_AGENT_STAGING_PEER_STAGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kvxfer/backend.h"

namespace kvxfer {

class PeerStage {
 public:
  // Whether copies of `device` may go there. Not under MPS: the work of a process that was killed
  // may go on in the MPS server after its end, and nothing would tell the peer when it has ended.
  static bool Suits(int device);

  // Begins to pin `region`, the peer's staging memory of `bytes`, for the GPUs of this process, of
  // which `device` is one.
  PeerStage(MappedRegion region, uint64_t bytes, int device);
  // Unpins and unmaps soon, on a thread of its own (src/cuda/closer.h).
  ~PeerStage();
  PeerStage(const PeerStage&) = delete;
  PeerStage& operator=(const PeerStage&) = delete;

  // GPUs can copy.
  bool open() const;
  std::byte* At(uint64_t offset) const;

 private:
  struct Memory;
  std::shared_ptr<Memory> memory_;  // shared with the thread that pins, which may end later
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_STAGING_PEER_STAGE_H_
