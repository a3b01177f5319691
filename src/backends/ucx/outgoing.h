// A frame to be sent: its own bytes (head, pieces, text), then bytes of memory that is lent to it
// until Path::Send returns. UCX packs the bytes straight into the buffer that its transport sends
// from, so they are copied once. If UCX does not take the frame at once, the frame first copies
// what is lent to it: lent memory is never read after Path::Send.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_UCX_OUTGOING_H_
#define KVXFER_BACKENDS_UCX_OUTGOING_H_

#include <ucp/api/ucp.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "src/backends/ucx/frames.h"

namespace kvxfer::ucx {

class Path;

class Outgoing {
 public:
  Path* path = nullptr;  // the frame's path, while UCX has the frame

  // Starts a frame that has only the space for its head.
  void Begin();
  size_t body_bytes() const { return bytes_ - kFrameHeadBytes; }
  void Append(const WireRun& piece);
  void Append(std::span<const std::byte> bytes);
  // Lent bytes are sent after everything that was appended.
  void Lend(const void* memory, size_t bytes);
  // Writes the head and sets its `bytes` to the size of the body.
  void SetHead(FrameHead head);

  size_t bytes() const { return bytes_; }
  // Copies what is lent into the frame's own bytes.
  void Own();
  // Copies bytes of the frame from `offset` on, as many as fit into `space`; returns how many.
  size_t Pack(size_t offset, std::span<std::byte> space);

  // The datatype by which UCX asks for the bytes of an Outgoing: the `buffer` of a send points to
  // one.
  static const ucp_generic_dt_ops_t kDatatypeOps;

 private:
  struct Lent {
    const std::byte* memory;
    size_t bytes;
  };

  std::vector<std::byte> own_;
  std::vector<Lent> lent_;
  size_t bytes_ = 0;  // of own_ and lent_ together
  // Where Pack stopped: lent_[part_] begins at offset part_offset_ of the frame.
  size_t part_ = 0;
  size_t part_offset_ = 0;
};

// Frames for reuse. One frame is built at a time; frames that UCX kept are given back when it is
// done.
class OutgoingPool {
 public:
  Outgoing& building() {
    if (building_ == nullptr) building_ = Take();
    return *building_;
  }
  // Hands out the frame that was built: UCX uses it from now on.
  std::unique_ptr<Outgoing> Keep() { return std::move(building_); }
  void Give(std::unique_ptr<Outgoing> frame);

 private:
  static constexpr size_t kMaxFree = 32;

  std::unique_ptr<Outgoing> Take();

  std::unique_ptr<Outgoing> building_;
  std::vector<std::unique_ptr<Outgoing>> free_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_OUTGOING_H_
