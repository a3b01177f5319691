// Frames of one connection, in order. All of them can go over its SOCK_SEQPACKET socket, with
// descriptors along; once both sides have mapped the rings, messages go through those, without a
// system call. A bounded queue keeps what socket or ring have no room for.
//
// A ring record says how many frames of the socket come before it, so a memfd is never overtaken by
// the message that speaks of it. No frame of the socket but the end waits for records.
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
    bool file_lost = false;  // one was sent, but this process had no descriptor left for it
  };
  enum class Got { kFrame, kNothing, kEnd };

  // Takes over a connected, non-blocking socket.
  explicit Channel(UniqueFd socket);

  int fd() const { return socket_.get(); }

  // False: no room now. All parts of a message are accepted or none.
  bool SendMessage(std::span<const std::byte> message);

  // Accepts always; the caller bounds how many. `file` is borrowed for the call.
  void SendFrame(FrameType type, std::string_view body, int file = -1);

  // Makes the rings and tells the other side of them, and of `bell`, by which it wakes this one.
  // Where that fails, messages stay with the socket.
  void OfferRings(int bell);
  // kRing from the other side: maps its rings and answers with `bell`.
  absl::Status TakeRings(const Frame& frame, int bell);
  // kBell from the other side: from now on messages go through the ring.
  absl::Status TakeBell(Frame& frame);
  bool has_rings() const { return rings_.data() != nullptr; }

  // Sends what is queued, as far as socket and ring have room.
  void Flush();
  bool queued() const { return !queue_.empty() || !parts_.empty(); }
  // Waits for the socket, as opposed to the ring.
  bool socket_queued() const { return !queue_.empty(); }

  // Takes the kFile frame of `id` back, if it has not left yet; true if so.
  bool DropQueuedFile(uint64_t id);

  // kEnd: the other side has closed its direction and everything it sent has been received. What
  // is no frame comes as kDamaged.
  Got Receive(Frame& frame);
  // The same, while the ring has something: without a system call but for what comes before it.
  Got ReceiveFromRing(Frame& frame);

  // Whether ReceiveFromRing may find something.
  bool ring_filled() const { return has_rings() && in_.filled(); }

  // From now on the other side rings the bell for what it puts into the ring. False: there is
  // something already.
  bool Arm();
  void Disarm();

  // No frame follows; the other side sees the end. Frames still come in.
  void HalfClose();
  // Ends both directions, for copies of the socket in forked children too, and closes.
  void Close();

 private:
  struct Queued {
    std::string bytes;  // header and body
    UniqueFd file;
  };
  enum class Sent { kYes, kLater, kNever };

  // One part of a message that waits for room in the ring.
  struct Part {
    bool more = false;
    std::string body;
  };

  absl::Status MapRings(int file, size_t sends_through);
  bool RingsReady() const { return bell_.valid(); }
  void PushPart(bool more, std::string_view body);
  bool TryPush(bool more, std::string_view body);
  void RingBell() const;
  void Discard();
  void Enqueue(FrameType type, bool more, std::string_view body, int file);
  Got ReceiveFromSocket(Frame& frame);
  Got Damaged(Frame& frame);
  bool OtherSideClosed() const;
  Sent TrySend(std::string_view header, std::string_view body, int file);

  UniqueFd socket_;
  pid_t owner_;  // a forked child's copy of the socket must not end the parent's connection
  std::deque<Queued> queue_;
  std::deque<Part> parts_;
  size_t queued_bytes_ = 0;   // of both
  uint64_t frames_sent_ = 0;  // by the socket
  uint64_t frames_received_ = 0;
  Mapping rings_;
  RingSender out_;
  RingReceiver in_;
  bool in_damaged_ = false;  // nothing more is taken out of it
  UniqueFd bell_;            // of the other side; valid: it has mapped the rings
  bool broken_ = false;      // sending is over; Receive says why
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_CHANNEL_H_
