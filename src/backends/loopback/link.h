// One connection between two agents of this process: the gate that every copy passes, and the
// bounds of what waits in the mailboxes on its behalf.
//
// Thread-safety: any thread; each method says whose it is meant for.
// Lifetime: shared_ptr, because both endpoints and the mail under way hold a link, and either side
// may let go first.

#ifndef KVXFER_BACKENDS_LOOPBACK_LINK_H_
#define KVXFER_BACKENDS_LOOPBACK_LINK_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "absl/status/status.h"
#include "src/backends/loopback/node.h"

namespace kvxfer::loopback {

class Link : public std::enable_shared_from_this<Link> {
 public:
  Link(std::shared_ptr<Node> initiator, std::shared_ptr<Node> target, uint32_t rails)
      : nodes_{std::move(initiator), std::move(target)}, rails_(rails) {}

  uint32_t rails() const { return rails_; }
  const Node& node(Side side) const { return *nodes_[static_cast<size_t>(side)]; }

  // --- the initiator ---
  bool authorized() const { return authorized_.load(std::memory_order_acquire); }
  // Copies up to `budget` bytes of `op`; when its last byte is copied the immediate, if any, is in
  // the target's mailbox. `*done` says so. Cancelled: the target fenced the transfer; Unavailable:
  // the link is closed or the owner gone; PermissionDenied as Node::Copy.
  absl::Status CopySlice(const Op& op, CopyCursor& cursor, uint64_t budget, uint64_t* copied,
                         bool* done);

  // --- the target ---
  void Authorize();
  // No byte and no immediate of `transfer` passes after the return; kFenced comes by mail. Waits
  // for one slice at most.
  void Fence(uint64_t transfer);

  // --- either side ---
  // False: too much waits in the other side's mailbox; kRoom comes by mail when it was taken.
  bool HasRoom(Side from);
  bool Send(Side from, std::span<const std::byte> message);
  // `to` has taken `mail` out of its mailbox.
  void Taken(const Mail& mail);
  // Nothing passes after the return; both sides get kDown by mail, once.
  void Close(Side from, const absl::Status& why);

 private:
  struct Flow {
    std::atomic<size_t> waiting{0};  // bytes in the other side's mailbox
    std::atomic<bool> blocked{false};
  };

  Node& To(Side side) { return *nodes_[static_cast<size_t>(side)]; }
  Flow& FlowFrom(Side side) { return flows_[static_cast<size_t>(side)]; }
  bool IsFenced(uint64_t transfer) const;

  const std::array<std::shared_ptr<Node>, 2> nodes_;
  const uint32_t rails_;
  std::array<Flow, 2> flows_;
  std::atomic<bool> authorized_{false};

  // Held while a slice is copied and its immediate is sent, so that a fence or a close is never in
  // the middle of one.
  std::mutex gate_;
  bool open_ = true;
  // The last transfers the target fenced, oldest first. Forgetting older ones is safe: by then
  // their initiator has been fenced too and has nothing left to send.
  std::deque<uint64_t> fenced_;
};

}  // namespace kvxfer::loopback

#endif  // KVXFER_BACKENDS_LOOPBACK_LINK_H_
