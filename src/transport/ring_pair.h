// The messages of one connection between two processes of a host, through two rings, one for each
// direction. Both processes map them, so a message needs no system call, except the one that wakes
// a process that sleeps.
//
// The rings are small at first and grow at the sender's wish (growing_ring.h). Memfds and bells
// pass over a socket that the two processes have beside the rings. Everything that the peer passes
// or writes is checked; InvalidArgument means that the peer broke the rules.
//
// The connecting side begins:
//   connecting → accepting   kRings  a memfd with two SmallRings: first the one that the connecting
//                                    side sends through, then the one for the accepting side
//   both                     kBell   an eventfd that wakes its sender; from the accepting side it
//                                    also means that the rings are mapped there. From then on
//                                    messages to its sender may go through a ring. Without a
//                                    descriptor it only wakes
//   both                     kGrow   a memfd with a LargeRing, for messages from its sender; once
//   both                     kNotGrown  the memfd of kGrow cannot be mapped
//
// What a peer holds: kSmallBytes from the beginning; beyond that, once for each direction, a
// LargeRing that the sender of that direction has made and touched first, so that the kernel counts
// it as that process's memory; and up to 1 MiB of messages that wait for space.
//
// Thread-safety: none. Nothing here blocks.

#ifndef KVXFER_TRANSPORT_RING_PAIR_H_
#define KVXFER_TRANSPORT_RING_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "src/core/base/own_fd.h"
#include "src/transport/host/growing_ring.h"
#include "src/transport/host/mapping.h"

namespace kvxfer::net {

enum class RingFrame : uint8_t { kRings, kBell, kGrow, kNotGrown };

class RingPair {
 public:
  // The socket between the two processes.
  class Socket {
   public:
    virtual ~Socket() = default;
    // Sends a frame, now or soon, in order. `file` is borrowed for the call; -1: none. A kBell
    // without one may be left out if something else waits for the socket, because that wakes too.
    virtual void PassRingFrame(RingFrame frame, int file) = 0;
  };
  // A message, or a part of one.
  struct Part {
    bool more = false;        // another part follows
    std::string_view body{};  // of Receive: in its buffer
  };
  enum class Got : uint8_t { kPart, kNothing, kBehind, kDamaged };

  // What the two rings take before either has grown.
  static constexpr size_t kSmallBytes = 2 * sizeof(SmallRing);
  // What Receive may need.
  static constexpr size_t kMaxPartBytes = LargeRing::kMaxRecordBytes;

  explicit RingPair(Socket* socket) : socket_(socket) {}
  RingPair(const RingPair&) = delete;
  RingPair& operator=(const RingPair&) = delete;

  // --- the beginning ---
  // Connecting side: makes the rings, and passes them and `bell`, with which the peer wakes this
  // side. An error: there are no rings.
  absl::Status Offer(int bell);
  // Accepting side: maps the peer's rings and answers with `bell`. InvalidArgument; any other
  // error: there are no rings.
  absl::Status Take(const OwnFd& file, int bell);
  // The peer's bell. Not valid: it only wakes, or there was no descriptor for it.
  absl::Status TakeBell(OwnFd bell);
  // The peer uses no rings, which it says before it passes a bell.
  absl::Status TakeNone();
  // The peer has made its ring larger.
  absl::Status TakeGrowth(const OwnFd& file);
  // The peer cannot map the larger ring of this side. `after`: as for Send.
  absl::Status TakeNotGrown(std::optional<uint64_t> after);
  // Both rings are mapped here: messages may come through one.
  bool mapped() const { return first_.data() != nullptr; }
  // The peer has mapped them too: messages go through the other one.
  bool ready() const { return bell_.valid(); }

  // --- sending; ready() ---
  // Accepts the message; the caller bounds queued_bytes(). `after`: how many frames of the socket
  // precede it; nullopt: some wait for the socket, and the message must not overtake them.
  void Send(std::span<const std::byte> message, std::optional<uint64_t> after);
  // Sends what waits, as far as there is space.
  void Flush(uint64_t after);
  bool queued() const { return !waiting_.empty(); }
  size_t queued_bytes() const { return queued_bytes_; }
  RingGrowth growth() const { return out_.growth(); }
  // Takes what waits, in parts of at most `most` bytes, so that it can go another way.
  void TakeWaiting(size_t most, absl::FunctionRef<void(const Part& part)> take);

  // --- receiving ---
  // Takes what comes next. `received`: how many frames of the socket have come. kBehind: the next
  // part follows frames that have not. kDamaged: the peer broke the rules; from now on kNothing.
  Got Receive(uint64_t received, std::span<char> buffer, Part& part);
  // True: Receive may find something.
  bool filled() const { return mapped() && in_.filled(); }
  RingGrowth peer_growth() const { return in_.growth(); }
  // The peer claims something that cannot be: nothing more is received.
  void Distrust() { distrusted_ = true; }

  // From now on the peer rings the bell when it puts something into the ring. False: the ring
  // already holds something.
  bool Arm() { return !mapped() || distrusted_ || in_.Arm(); }
  void Disarm() {
    if (mapped()) in_.Disarm();
  }

  // Drops what waits to be sent.
  void Discard();
  // Lets go of the rings and the bell. The peer can still take what is in its ring.
  void Close();

 private:
  // What is left of a message, or of a part of one.
  struct Waiting {
    bool more = false;
    std::string body;
  };

  absl::Status Map(int file, size_t sends_through);
  bool TryPush(uint64_t after, bool more, std::string_view body);
  // False: there is a large ring, or there will be none.
  bool Grow();
  void WakeSender();

  Socket* const socket_;
  Mapping first_;
  Mapping out_large_;
  Mapping in_large_;
  GrowingSender out_;
  GrowingReceiver in_;
  bool distrusted_ = false;
  uint32_t times_full_ = 0;  // how often a message found the small ring full
  OwnFd bell_;               // the peer's
  std::deque<Waiting> waiting_;
  size_t front_sent_ = 0;  // bytes of the first one that have gone
  size_t queued_bytes_ = 0;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_RING_PAIR_H_
