// The control stream of a link: preamble and welcome, then framed messages in both directions.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_TRANSPORT_CONTROL_STREAM_H_
#define KVXFER_TRANSPORT_CONTROL_STREAM_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/stream.h"

namespace kvxfer::net {

class ControlStream final : public Stream {
 public:
  // Bytes of messages that may wait here for the socket.
  static constexpr size_t kMaxQueued = 1024 * 1024;
  // Bytes of all kinds. What the two backends say to each other on their own account has its bounds
  // and fits in beside the messages; what is beyond are answers to a peer that asks and does not
  // listen.
  static constexpr size_t kMaxUnsent = 4 * kMaxQueued;

  struct Frame {
    ControlKind kind = ControlKind::kMessage;
    std::span<const std::byte> payload;
  };

  explicit ControlStream(StreamOwner* owner) : Stream(owner) {}

  // Gives the socket up and forgets what it brought: the next one begins at its first byte.
  void Restart();

  // --- sending ---
  // Sends now what the socket takes, what waits here first, and keeps the rest. False: no room for
  // a message. Errors as of Flush; all of the payload is kept then too.
  absl::StatusOr<bool> Push(ControlKind kind, std::span<const std::byte> payload);
  // A frame whose payload the caller writes before anything else is called here. It leaves with the
  // next Push or Flush.
  std::span<std::byte> Append(ControlKind kind, size_t bytes);
  // Sends all of `bytes` or, while the connection is not up, nothing (false).
  absl::StatusOr<bool> PushRaw(std::span<const std::byte> bytes);
  // Unavailable: the connection is over. ResourceExhausted: more than kMaxUnsent is left.
  absl::Status Flush();
  bool sending() const { return !out_.empty(); }
  size_t queued_bytes() const { return out_.size() - sent_; }
  // What the socket has not taken, at the end of the link.
  std::string TakeQueued();

  // --- receiving ---
  // Reads once; false: nothing there. Earlier frames' payloads are lost.
  absl::StatusOr<bool> Fill();
  std::span<const std::byte> buffered() const;
  void Consume(size_t bytes) { begin_ += bytes; }
  // The first whole frame in the buffer, until Pop.
  absl::StatusOr<std::optional<Frame>> Front() const;
  void Pop(const Frame& frame) { Consume(kControlHeadBytes + frame.payload.size()); }
  // Also true when the buffer is damaged: there is something to find out.
  bool HasFrame() const;

 private:
  size_t BytesMissing() const;

  std::string out_;
  size_t sent_ = 0;  // of out_
  std::vector<std::byte> in_;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_CONTROL_STREAM_H_
