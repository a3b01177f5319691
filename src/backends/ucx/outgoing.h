// A frame on its way out: its own bytes (head, pieces, text), then bytes of memory that is lent to
// it for as long as it takes to hand it to UCX. UCX packs them into what its transport sends from,
// so that they are copied once. What it does not take at once the frame makes its own first: lent
// memory is never read after Path::Send.
//
// Thread-safety: none; used by the backend's owner.

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
  Path* path = nullptr;  // whose frame it is, while UCX has it

  // Empty, but for room for the head.
  void Begin();
  size_t body_bytes() const { return bytes_ - kFrameHeadBytes; }
  void Append(const WireRun& piece);
  void Append(std::span<const std::byte> bytes);
  // Goes behind everything that is appended.
  void Lend(const void* memory, size_t bytes);
  // Its bytes are those of the body.
  void SetHead(FrameHead head);

  size_t bytes() const { return bytes_; }
  // Copies what is lent.
  void Own();
  // Up to `room` bytes from `offset` on.
  size_t Pack(size_t offset, std::span<std::byte> room);

  // How UCX asks for the bytes of an Outgoing: the type of what `buffer` of a send points to.
  static const ucp_generic_dt_ops_t kDatatypeOps;

 private:
  struct Lent {
    const std::byte* memory;
    size_t bytes;
  };

  std::vector<std::byte> own_;
  std::vector<Lent> lent_;
  size_t bytes_ = 0;  // of both
  // Where Pack has come to: this part of what is lent begins at that offset.
  size_t part_ = 0;
  size_t part_offset_ = 0;
};

// One frame is built at a time. Those that UCX kept come back here.
class OutgoingPool {
 public:
  Outgoing& building() {
    if (building_ == nullptr) building_ = Take();
    return *building_;
  }
  // The one that was built: it is UCX's now.
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
