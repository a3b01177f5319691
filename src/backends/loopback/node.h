// What an agent exposes to other agents of its process: its registered memory and its mailbox; and
// the hub where agents find each other.
//
// Thread-safety: any thread; this is where the threads of two agents meet. Locks are taken in this
// order: Connection::gate, Node memory, Node mailbox. The hub's lock is never held together with
// another one. Lifetime: shared_ptr, because a backend, the hub and the peers' connections hold a
// Node, and any of them may be the last one. Close() ends it for all of them.

#ifndef KVXFER_BACKENDS_LOOPBACK_NODE_H_
#define KVXFER_BACKENDS_LOOPBACK_NODE_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"

namespace kvxfer::loopback {

class Connection;

// The side that connected is the initiator; the side that accepted is the target.
enum class Side : uint8_t { kInitiator = 0, kTarget = 1 };

constexpr Side Other(Side side) {
  return side == Side::kInitiator ? Side::kTarget : Side::kInitiator;
}

enum class MailKind : uint8_t {
  kConnect,     // to the target: a peer has connected
  kAuthorized,  // to the initiator: ops may run now
  kSpace,       // to a sender: the other side has taken mail, try again
  kMessage,
  kImmediate,
  kFenced,  // from the target to itself, behind every immediate of the transfer
  kDown,    // the last mail of its connection to that side
};

struct Mail {
  MailKind kind = MailKind::kSpace;
  Side to = Side::kTarget;
  std::shared_ptr<Connection> connection{};
  uint32_t rail = 0;
  uint32_t immediate = 0;
  uint64_t transfer = 0;
  std::vector<std::byte> message{};
  absl::Status status{};
};

// How far a copy has come: the runs that are left. `checked`: the version of the target's regions
// against which every run of the op was checked; 0: not checked yet.
struct CopyCursor {
  RunWalk left;
  uint64_t checked = 0;
};

// A peer's region is identified by its rkey alone; its owner looks it up.
class Key : public RemoteKey {
 public:
  explicit Key(uint32_t rkey) : rkey_(rkey) {}
  uint32_t rkey() const { return rkey_; }

 private:
  const uint32_t rkey_;
};

class Node {
 public:
  static absl::StatusOr<std::shared_ptr<Node>> Create(std::string address);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const std::string& address() const { return address_; }
  int wake_fd() const { return wake_fd_; }

  // --- memory ---
  void Expose(const LocalRegion& region);
  // Waits for slices that are being copied, at most one per peer.
  void Conceal(uint32_t rkey);

  // Copies up to `budget` bytes of `op` between the caller's memory and this node's, from `cursor`
  // on. `*copied` is the number of bytes. All runs are checked before the first byte moves, and
  // again if a region came or went meanwhile. PermissionDenied: unknown rkey, bounds or rights.
  // Unavailable: the owner is gone.
  absl::Status Copy(const Op& op, CopyCursor& cursor, uint64_t budget, uint64_t* copied);

  // --- mailbox ---
  // False: the mailbox is closed, and the mail is dropped.
  bool Deliver(Mail mail);
  // Appends up to `max` mails to `out`, oldest first.
  void Collect(size_t max, std::vector<Mail>& out);
  bool has_mail() const { return mail_count_.load(std::memory_order_acquire) != 0; }

  // After the return no byte is copied from or to this node's memory, and no mail is accepted.
  // Returns the contents of the mailbox.
  std::deque<Mail> Close();

 private:
  Node(std::string address, int wake_fd) : address_(std::move(address)), wake_fd_(wake_fd) {}
  std::unique_lock<std::shared_mutex> LockRegions();
  absl::Status CheckRuns(const Op& op) const;

  const std::string address_;
  const int wake_fd_;

  // Shared while a slice is copied, exclusive while regions change. Every thread passes the
  // turnstile before it takes the lock. So a change waits only for the slices that are being
  // copied, not for later ones.
  std::mutex turnstile_;
  std::shared_mutex memory_mutex_;
  std::unordered_map<uint32_t, LocalRegion> regions_;
  uint64_t version_ = 1;
  bool memory_closed_ = false;

  std::mutex mail_mutex_;
  std::deque<Mail> mail_;
  std::atomic<size_t> mail_count_{0};  // mail_.size(), readable without the lock
  bool woken_ = false;                 // wake_fd_ is readable
  bool mail_closed_ = false;
};

// The agents of this process, by address. False: the address is taken.
bool Publish(const std::shared_ptr<Node>& node);
void Withdraw(const Node& node);
std::shared_ptr<Node> Find(std::string_view address);  // null: none

}  // namespace kvxfer::loopback

#endif  // KVXFER_BACKENDS_LOOPBACK_NODE_H_
