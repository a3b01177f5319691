// Frames over one connected SOCK_SEQPACKET socket: a bounded queue for what the socket has no room
// for, messages cut into parts, and descriptors that travel along.
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

#include "src/backends/shm/handles.h"
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

  // Sends what is queued, as far as the socket has room.
  void Flush();
  bool queued() const { return !queue_.empty(); }

  // Takes the kFile frame of `id` back, if it has not left yet; true if so.
  bool DropQueuedFile(uint64_t id);

  // kEnd: the other side has closed its direction and everything it sent has been received. What
  // is no frame comes as kDamaged.
  Got Receive(Frame& frame);

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

  void Enqueue(FrameType type, bool more, std::string_view body, int file);
  bool OtherSideClosed() const;
  Sent TrySend(std::string_view header, std::string_view body, int file);

  UniqueFd socket_;
  pid_t owner_;  // a forked child's copy of the socket must not end the parent's connection
  std::deque<Queued> queue_;
  size_t queued_bytes_ = 0;
  bool broken_ = false;  // sending is over; Receive says why
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_CHANNEL_H_
