// The control stream of an endpoint: preamble and welcome, then framed messages in both directions.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_CONTROL_STREAM_H_
#define KVXFER_TRANSPORT_CONTROL_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/transport/hello.h"
#include "src/transport/receive_space.h"
#include "src/transport/sockets/stream.h"

namespace kvxfer::net {

class ControlStream final : public Stream, private ReceiveSpace::User {
 public:
  // The most message bytes that may wait here for the socket.
  static constexpr size_t kMaxQueued = 1024 * 1024;
  // The most bytes of all kinds that may wait. What the two backends send on their own account is
  // bounded and fits beside the messages. Anything beyond is answers to a peer that keeps asking
  // and never reads.
  static constexpr size_t kMaxUnsent = 4 * kMaxQueued;

  struct Frame {
    ControlKind kind = ControlKind::kMessage;
    std::span<const std::byte> payload;
  };

  // The stream receives into `space`, which outlives every Fill.
  ControlStream(StreamClient* client, ReceiveSpace* space) : Stream(client), space_(space) {}

  // Releases the socket and forgets what it delivered; the next one starts at its first byte.
  void Restart();

  // --- sending ---
  // Sends as much as the socket accepts, first what already waits here, and keeps the rest. False:
  // no space for a message. Errors as for Flush; the payload is then kept completely too.
  absl::StatusOr<bool> Push(ControlKind kind, std::span<const std::byte> payload);
  // Appends a frame whose payload the caller must write before it calls anything else here. It is
  // sent with the next Push or Flush.
  std::span<std::byte> Append(ControlKind kind, size_t bytes);
  // Sends all of `bytes`, or nothing (false) while the connection is not established.
  absl::StatusOr<bool> PushRaw(std::span<const std::byte> bytes);
  // Unavailable: the connection has ended. ResourceExhausted: more than kMaxUnsent waits.
  absl::Status Flush();
  bool sending() const { return !out_.empty(); }
  size_t queued_bytes() const { return out_.size() - sent_; }
  // At the end of the endpoint: the bytes that the socket has not accepted.
  std::string TakeQueued();

  // --- receiving ---
  // A frame of more bytes is an error, whatever DecodeControlHead takes: of it nothing is kept.
  void LimitFrames(size_t bytes) { max_frame_ = bytes; }
  // Reads once. False: nothing there. Invalidates the payloads of earlier frames.
  absl::StatusOr<bool> Fill();
  // What was received and not consumed.
  std::span<const std::byte> buffered() const { return in_; }
  void Consume(size_t bytes);
  // The first complete frame that was received. Once popped, it stays valid until the next Fill, or
  // until the next turn of the space begins.
  absl::StatusOr<std::optional<Frame>> Front() const;
  void Pop(const Frame& frame) { Consume(kControlHeadBytes + frame.payload.size()); }
  // Whether Front has a result: a complete frame, or an error because the buffer is damaged.
  bool HasFrame() const;

 private:
  size_t BytesMissing() const;
  // The head of the first frame, all of which must be there.
  absl::StatusOr<ControlHead> Head() const;
  // Reads behind what was received already.
  absl::StatusOr<bool> FillOwn();
  // Moves what is in in_ to the stream's own bytes, of which there will be `bytes`.
  void MoveTo(size_t bytes);
  void MoveOut() override;

  std::string out_;
  size_t sent_ = 0;  // bytes of out_ that were sent
  ReceiveSpace* const space_;
  std::span<const std::byte> in_;  // received and not consumed; in the space, or in own_
  ReceiveSpace::Bytes own_;        // null while there is nothing of its own
  size_t own_bytes_ = 0;           // of own_
  size_t max_frame_ = SIZE_MAX;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_CONTROL_STREAM_H_
