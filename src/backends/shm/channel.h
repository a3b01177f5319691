// The frames of one connection, in order. All of them can go over its SOCK_SEQPACKET socket, with
// descriptors attached. Once both sides have mapped the rings, messages go through the rings
// without a system call. A bounded queue keeps what the socket or ring has no space for.
//
// A ring record says how many frames of the socket precede it, so a message never overtakes the
// memfd that it refers to. No frame of the socket waits for records, except the end.
//
// Thread-safety: none. Nothing here blocks.

#ifndef KVXFER_BACKENDS_SHM_CHANNEL_H_
#define KVXFER_BACKENDS_SHM_CHANNEL_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "src/backends/shm/handles.h"
#include "src/backends/shm/ring.h"
#include "src/backends/shm/wire.h"

namespace kvxfer::shm {

inline constexpr size_t kMaxMessageBytes = 256 * 1024;

class Channel {
 public:
  struct Frame {
    FrameType type = FrameType::kBye;
    bool more = false;
    std::string_view body;  // valid until the next Receive
    UniqueFd file;
    bool file_lost = false;  // a file was sent, but this process had no descriptor for it
  };
  enum class Got { kFrame, kNothing, kEnd };

  // Takes ownership of a connected, non-blocking socket.
  explicit Channel(UniqueFd socket);

  int fd() const { return socket_.get(); }

  // False: no space now. Either all parts of a message are accepted or none.
  bool SendMessage(std::span<const std::byte> message);

  // Always accepts; the caller limits how many. `file` is borrowed for the call.
  void SendFrame(FrameType type, std::string_view body, int file = -1);

  // Makes the rings, sends them to the other side, and sends `bell`, with which the other side
  // wakes this one. If that fails, messages stay on the socket.
  void OfferRings(int bell);
  // Handles kRing: maps the other side's rings and answers with `bell`.
  absl::Status TakeRings(const Frame& frame, int bell);
  // Handles kBell: from now on messages go through the ring.
  absl::Status TakeBell(Frame& frame);
  bool has_rings() const { return rings_.data() != nullptr; }

  // Sends what is queued, as far as the socket and the ring have space.
  void Flush();
  bool queued() const { return !queue_.empty() || !parts_.empty(); }
  // Something waits for the socket, rather than for the ring.
  bool socket_queued() const { return !queue_.empty(); }

  // Withdraws the kFile frame of `id` if it has not been sent yet. True: withdrawn.
  bool DropQueuedFile(uint64_t id);

  // kEnd: the other side has closed its direction and everything it sent has been received. Data
  // that is not a frame is returned as kDamaged.
  Got Receive(Frame& frame);
  // The same, but from the ring only. Makes no system call unless frames of the socket come first.
  Got ReceiveFromRing(Frame& frame);

  // True: ReceiveFromRing may find something.
  bool ring_filled() const { return has_rings() && in_.filled(); }

  // From now on the other side rings the bell when it puts something into the ring. False: the ring
  // already holds something.
  bool Arm();
  void Disarm();

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

  // One part of a message that waits for space in the ring.
  struct Part {
    bool more = false;
    std::string body;
  };

  absl::Status MapRings(int file, size_t sends_through);
  bool RingsReady() const { return bell_.valid(); }
  void PushPart(bool more, std::string_view body);
  bool TryPush(bool more, std::string_view body);
  void RingBell() const;
  void WakeSender();
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
  std::deque<Part> parts_;
  size_t queued_bytes_ = 0;   // of both queues
  uint64_t frames_sent_ = 0;  // over the socket
  uint64_t frames_received_ = 0;
  Mapping rings_;
  RingSender out_;
  RingReceiver in_;
  bool in_damaged_ = false;  // nothing more is read from it
  UniqueFd bell_;            // the other side's; valid: that side has mapped the rings
  bool broken_ = false;      // nothing can be sent; Receive finds the reason
  std::unique_ptr<char[]> buffer_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_CHANNEL_H_
