// The frames of one connection, in order. All of them can go over its SOCK_SEQPACKET socket, with
// descriptors attached. Once both sides have mapped the rings (src/transport/ring_pair.h), messages
// go through the rings without a system call. Bounded queues keep what the socket or ring has no
// space for.
//
// A ring record says how many frames of the socket precede it, so a message never overtakes the
// memfd that it refers to. No frame of the socket waits for records, except the end.
//
// Thread-safety: none. Nothing here blocks.

#ifndef KVXFER_BACKENDS_SHM_CHANNEL_H_
#define KVXFER_BACKENDS_SHM_CHANNEL_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "src/backends/shm/handles.h"
#include "src/backends/shm/wire.h"
#include "src/transport/ring_pair.h"

namespace kvxfer::shm {

inline constexpr size_t kMaxMessageBytes = 256 * 1024;

class Channel final : private net::RingPair::Socket {
 public:
  // A frame must fit the smallest socket buffer that an administrator may have set.
  static constexpr size_t kPartBytes = 60 * 1024;
  // Where a frame is received. Channels share one, so that a connection that is idle needs none.
  using Buffer = std::array<char, kFrameHeaderBytes + kPartBytes>;
  static_assert(sizeof(Buffer) >= net::RingPair::kMaxPartBytes);

  struct Frame {
    FrameType type = FrameType::kBye;
    bool more = false;
    std::string_view body;  // valid until the next Receive of any channel with the same buffer
    UniqueFd file;
    bool file_lost = false;  // a file was sent, but this process had no descriptor for it
  };
  enum class Got { kFrame, kNothing, kEnd };

  // Takes ownership of a connected, non-blocking socket. `buffer` must exist as long as something
  // is received.
  Channel(UniqueFd socket, Buffer* buffer);

  int fd() const { return socket_.get(); }

  // False: no space now. Either all parts of a message are accepted or none.
  bool SendMessage(std::span<const std::byte> message);

  // Always accepts; the caller limits how many. `file` is borrowed for the call.
  void SendFrame(FrameType type, std::string_view body, int file = -1);

  // Makes the rings, sends them to the other side, and sends `bell`, with which the other side
  // wakes this one. An error: there are none, and messages stay on the socket.
  absl::Status OfferRings(int bell) { return rings_.Offer(bell); }
  // Handles kRing: maps the other side's rings and answers with `bell`. Internal: the other side
  // broke the rules; any other error: there are none.
  absl::Status TakeRings(const Frame& frame, int bell);
  // Handles kBell, kGrow, kNotGrown and kNoRings. After the first bell messages go through the
  // ring.
  absl::Status TakeRingFrame(Frame& frame);
  bool has_rings() const { return rings_.mapped(); }
  // Messages go through a ring.
  bool sends_through_ring() const { return rings_.ready(); }

  // Sends what is queued, as far as the socket and the ring have space.
  void Flush();
  bool queued() const { return !queue_.empty() || rings_.queued(); }
  // Something waits for the socket, rather than for the ring.
  bool socket_queued() const { return !queue_.empty(); }

  // Nothing can be sent any more.
  bool broken() const { return broken_; }

  // Withdraws the kFile frame of `id` if it has not been sent yet. True: withdrawn.
  bool DropQueuedFile(uint64_t id);

  // kEnd: the other side has closed its direction and everything it sent has been received. Data
  // that is not a frame is returned as kDamaged.
  Got Receive(Frame& frame);
  // The same, but from the ring only. Makes no system call unless frames of the socket come first.
  Got ReceiveFromRing(Frame& frame);

  // True: ReceiveFromRing may find something.
  bool ring_filled() const { return rings_.filled(); }

  // From now on the other side rings the bell when it puts something into the ring. False: the ring
  // already holds something.
  bool Arm() { return rings_.Arm(); }
  void Disarm() { rings_.Disarm(); }

  // Ends this direction: no frame follows, and the other side sees the end. Frames are still
  // received.
  void HalfClose();
  // Ends both directions, also for copies of the socket in forked children, and closes the socket.
  void Close();

 private:
  struct Queued {
    std::string bytes;  // header and body
    UniqueFd file;
  };
  enum class Sent { kYes, kLater, kNever };

  // RingPair::Socket.
  void PassRingFrame(net::RingFrame frame, int file) override;
  // nullopt: something waits for the socket.
  std::optional<uint64_t> SentBefore() const {
    if (!queue_.empty()) return std::nullopt;
    return frames_sent_;
  }
  void Discard();
  void Enqueue(FrameType type, bool more, std::string_view body, int file);
  // `*empty` becomes true if nothing is in the socket (kNothing may also be a lack of memory).
  Got ReceiveFromSocket(Frame& frame, bool* empty = nullptr);
  Got Damaged(Frame& frame);
  bool OtherSideClosed() const;
  Sent TrySend(std::string_view header, std::string_view body, int file);

  UniqueFd socket_;
  pid_t owner_;  // a forked child's copy of the socket must not end the parent's connection
  std::deque<Queued> queue_;
  size_t queued_bytes_ = 0;   // of queue_
  uint64_t frames_sent_ = 0;  // over the socket
  uint64_t frames_received_ = 0;
  net::RingPair rings_{this};
  bool broken_ = false;  // nothing can be sent; Receive finds the reason
  Buffer* const buffer_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_CHANNEL_H_
