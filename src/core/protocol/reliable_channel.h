// The numbered control channel of one session, at one side. Frames are numbered from 1, kept until
// acknowledged, replayed after a reconnect within one pair of incarnations; what comes in is put
// in order and given out once. Pure: it moves no bytes itself.
//
// Thread-safety: none; owned by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_RELIABLE_CHANNEL_H_
#define KVXFER_CORE_PROTOCOL_RELIABLE_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
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

  // --- sending ---
  // `body`: a frame of wire_format.h, or the bytes of one.
  template <typename Body>
  void Push(FrameType type, const Body& body) {
    ++last_sequence_;
    kept_.push_back(
        {.sequence = last_sequence_, .message = EncodeMessage(type, last_sequence_, 0, body)});
  }
  // The next message to hand to the transport, with the latest ack in it, or null. It stays kept
  // until acknowledged. Call MessageSent after the transport took it, before anything else here.
  const std::string* NextToSend();
  void MessageSent();
  // The other side has everything up to `ack`. InvalidArgument: an ack of what was never sent.
  absl::Status OnAck(uint64_t ack);
  // A new connection: whatever is kept is sent again, oldest first, and received() is told again,
  // for the last telling may be lost and nobody else would let the other side forget.
  void Rewind();
  uint64_t oldest_kept() const;  // lowest sequence that can be replayed
  size_t kept() const { return kept_.size(); }

  // --- receiving ---
  // Takes one numbered frame and gives `take` those that are now in order, one by one, until it
  // fails, after which the session must be reset. Their bodies are valid during the call only.
  // Duplicates vanish.
  // ResourceExhausted: more than kMaxGap ahead of what is in order, or kMaxAheadBytes wait for one
  // that is missing; InvalidArgument: not numbered.
  absl::Status OnFrame(const Envelope& envelope,
                       absl::FunctionRef<absl::Status(const Incoming&)> take);
  uint64_t received() const { return received_; }  // highest in order: what to acknowledge
  // True when received() has not yet travelled in any message of this connection.
  bool ack_due() const { return received_ != ack_told_; }
  // Whether a message only to acknowledge is worth sending: every other message acknowledges too,
  // pings at the latest, and until then the other side only keeps what is small and bounded.
  bool ack_pressing() const { return received_ - ack_told_ >= kAckEvery; }
  // A message that only acknowledges; counts as told.
  std::string AckMessage();

  // How far ahead of the order a frame may come.
  static constexpr uint64_t kMaxGap = 4096;
  static constexpr size_t kMaxAheadBytes = 32u << 20;
  // A peer that lets so many frames go unacknowledged breaks the protocol: each message of its own
  // acknowledges, and so does a ping.
  static constexpr size_t kMaxKept = 65'536;
  static constexpr uint64_t kAckEvery = 32;

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  struct Kept {
    uint64_t sequence;
    std::string message{};
  };
  std::deque<Kept> kept_;
  size_t next_ = 0;  // index in kept_ of the next to send
  uint64_t last_sequence_ = 0;
  uint64_t highest_sent_ = 0;  // on any connection

  uint64_t received_ = 0;
  uint64_t ack_told_ = 0;  // 0: nothing yet on this connection
  struct Ahead {
    FrameType type;
    std::vector<std::byte> body{};
  };
  std::map<uint64_t, Ahead> ahead_;
  size_t ahead_bytes_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_RELIABLE_CHANNEL_H_
