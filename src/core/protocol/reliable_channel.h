// The numbered control channel of one session, at one side. Frames are numbered from 1, kept until
// they are acknowledged, and replayed after a reconnect within one pair of incarnations. Received
// frames are put in order and passed on once. Pure: it moves no bytes itself.
//
// Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_RELIABLE_CHANNEL_H_
#define KVXFER_CORE_PROTOCOL_RELIABLE_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class ReliableChannel {
 public:
  struct Incoming {
    FrameType type;
    std::span<const std::byte> body{};
  };

  class User {
   public:
    virtual ~User() = default;
    // A frame is to be sent.
    virtual void OnPushed(FrameType type) = 0;
  };
  // Null: none. It outlives the channel.
  void set_user(User* user) { user_ = user; }

  // --- sending ---
  // `body`: a frame of wire_format.h, or an encoded one.
  template <typename Body>
  void Push(FrameType type, const Body& body) {
    ++last_sequence_;
    kept_.push_back(
        {.sequence = last_sequence_,
         .message = EncodeMessage(type, last_sequence_, 0, body, std::exchange(spare_, {}))});
    kept_bytes_ += kept_.back().message.size();
    if (user_ != nullptr) user_->OnPushed(type);
  }
  // The next message for the transport, with the current ack written into it, or null. It stays
  // kept until it is acknowledged. Call MessageSent once the transport has accepted it, before any
  // other call.
  const std::string* NextToSend();
  void MessageSent();
  // The next frames together, as many as fit into `max_bytes`, if there are two at least; else 0.
  size_t GatherToSend(size_t max_bytes, std::string& out);
  // NextToSend has something to return.
  bool has_to_send() const { return next_ < kept_.size(); }
  // Whether `which` is so of all that NextToSend has still to return.
  bool AllToSend(absl::FunctionRef<bool(FrameType)> which) const;
  // The peer has received everything up to `ack`. InvalidArgument: that frame was never sent.
  absl::Status OnAck(uint64_t ack);
  // A new connection: sends everything that is kept again, oldest first, and acknowledges
  // received() again. The last acknowledgement may be lost, and the peer keeps its frames until it
  // gets one.
  void Rewind();
  size_t kept() const { return kept_.size(); }
  // The number of the oldest frame that is kept; 0: none.
  uint64_t oldest() const { return kept_.empty() ? 0 : kept_.front().sequence; }
  size_t kept_bytes() const { return kept_bytes_; }

  // --- receiving ---
  // Takes one numbered frame, and calls `take` with each frame that is now in order. Stops if
  // `take` fails; then the session must be reset. The bodies are valid during the call only.
  // Duplicates are dropped.
  // ResourceExhausted: the frame is more than kMaxGap ahead of the order, or kMaxAheadBytes wait
  // for a missing frame. InvalidArgument: the frame has no number.
  absl::Status OnFrame(const Envelope& envelope,
                       absl::FunctionRef<absl::Status(const Incoming&)> take);
  uint64_t received() const { return received_; }  // highest in order: the number to acknowledge
  // True if no message of this connection has acknowledged received() yet.
  bool ack_due() const { return received_ != ack_sent_; }
  // Whether an acknowledgement deserves a message of its own. Every other message acknowledges too,
  // a ping at the latest; until then the peer only keeps a small, bounded number of frames.
  bool ack_pressing() const {
    return received_ - ack_sent_ >= kAckEvery || bytes_since_ack_ >= kAckEveryBytes;
  }
  // A message that only acknowledges; the acknowledgement counts as sent.
  std::string AckMessage();

  // How far ahead of the order a frame may be.
  static constexpr uint64_t kMaxGap = 4096;
  static constexpr size_t kMaxAheadBytes = 32u << 20;
  // A peer that leaves this many frames unacknowledged violates the protocol: every message that it
  // sends acknowledges, and so does a ping.
  static constexpr size_t kMaxKept = 65'536;
  static constexpr uint64_t kAckEvery = 32;
  static constexpr size_t kAckEveryBytes = 256 * 1024;  // of bodies

 private:
  static constexpr size_t kMaxSpareBytes = 1024;
  friend struct ProtocolModelAccess;  // the tests' search compares states

  void OnAckSent() {
    ack_sent_ = received_;
    bytes_since_ack_ = 0;
  }

  User* user_ = nullptr;
  struct Kept {
    uint64_t sequence;
    std::string message{};
  };
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;  // of their messages
  std::string spare_{};    // the memory of one that was acknowledged, for the next
  size_t next_ = 0;        // index in kept_ of the next message to send
  uint64_t last_sequence_ = 0;
  uint64_t highest_sent_ = 0;  // on any connection

  uint64_t received_ = 0;
  uint64_t ack_sent_ = 0;       // 0: nothing acknowledged on this connection yet
  size_t bytes_since_ack_ = 0;  // bodies of the frames in order since then
  struct Ahead {
    FrameType type;
    std::vector<std::byte> body{};
  };
  std::map<uint64_t, Ahead> ahead_;
  size_t ahead_bytes_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_RELIABLE_CHANNEL_H_
