// A connection between two agents of this process: the gate that every copy passes, and the limits
// on what waits in the mailboxes for it.
//
// Thread-safety: any thread; each method says which side calls it.
// Lifetime: shared_ptr, because both endpoints and the mail under way hold a connection, and any of
// them may be the last one.

#ifndef KVXFER_BACKENDS_LOOPBACK_CONNECTION_H_
#define KVXFER_BACKENDS_LOOPBACK_CONNECTION_H_

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

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Node> initiator, std::shared_ptr<Node> target, uint32_t rails)
      : nodes_{std::move(initiator), std::move(target)}, rails_(rails) {}

  uint32_t rails() const { return rails_; }
  const Node& node(Side side) const { return *nodes_[static_cast<size_t>(side)]; }

  // --- the initiator ---
  bool authorized() const { return authorized_.load(std::memory_order_acquire); }
  // Copies up to `budget` bytes of `op`. `*done`: the last byte was copied, and the immediate, if
  // there is one, is in the target's mailbox. Cancelled: the target fenced the transfer.
  // Unavailable: the connection is closed or the target's agent is gone. PermissionDenied: as
  // Node::Copy.
  absl::Status CopySlice(const Op& op, CopyCursor& cursor, uint64_t budget, uint64_t* copied,
                         bool* done);

  // --- the target ---
  void Authorize();
  // After the return no byte and no immediate of `transfer` passes; kFenced comes by mail. Waits
  // for one slice at most.
  void Fence(uint64_t transfer);

  // --- either side ---
  // False: too much waits in the other side's mailbox. kSpace comes by mail once some of it was
  // taken.
  bool HasSpace(Side from);
  bool Send(Side from, std::span<const std::byte> message);
  // The side mail.to has taken `mail` from its mailbox.
  void Taken(const Mail& mail);
  // After the return nothing passes. Each side gets kDown by mail, once.
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

  // Held while a slice is copied and its immediate is delivered. So a fence or a close never falls
  // between a copy and its immediate.
  std::mutex gate_;
  bool open_ = true;
  // The transfers that the target fenced last, oldest first. Older ones can be forgotten: their
  // initiator has been fenced meanwhile and sends nothing more of them.
  std::deque<uint64_t> fenced_;
};

}  // namespace kvxfer::loopback

#endif  // KVXFER_BACKENDS_LOOPBACK_CONNECTION_H_
