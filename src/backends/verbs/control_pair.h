// A control pair: the queue pair that carries the messages of one endpoint, with receives of its
// own. It never has data.
//
// A message is copied into registered buffers, one for each part that has credit (send_credit.h).
// What has none waits outside of them: kMaxBacklog bytes, or one message. A buffer is kept until
// the peer has said that it has taken the part, so whatever the peer may lack is still there when
// the queue pair fails (TakeUndelivered).
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_CONTROL_PAIR_H_
#define KVXFER_BACKENDS_VERBS_CONTROL_PAIR_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/message_buffers.h"
#include "src/backends/verbs/message_parts.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/backends/verbs/send_credit.h"
#include "src/backends/verbs/send_queue.h"
#include "src/core/base/clock.h"

namespace kvxfer::verbs {

class VerbsBackend;

class ControlPair final : public WorkOwner {
 public:
  // How deep the queues of the queue pair are. All but one of the sends are for parts.
  static constexpr QueueDepths kDepths = {.sends = 16, .receives = SendCredit::kMost + 1};

  class Client {
   public:
    virtual ~Client() = default;
    // Call Work in the next turn.
    virtual void OnPairWork() = 0;
    // deadline() has changed.
    virtual void OnPairDeadline() = 0;
    // Whether a message may be reported now.
    virtual bool TakesMessages() = 0;
    virtual void OnPairMessage(std::string message) = 0;
  };

  // `pair` is connected. `where` begins errors.
  ControlPair(VerbsBackend* backend, Client* client, std::unique_ptr<QueuePair> pair,
              std::string where);
  // The backend must exist unless Destroy was called. If the device refuses to destroy the queue
  // pair, its buffers are not used again.
  ~ControlPair() override;

  // Posts the receives. The peer may send from then on.
  absl::Status Open();
  // Where the peer reaches the queue pair.
  const QpAddress& address() const { return address_; }

  // False: no space now.
  bool Send(std::span<const std::byte> message);
  // One turn: takes what has arrived if `deliver`, sends what waits. An error: the peer broke the
  // protocol.
  absl::Status Work(bool deliver);
  // OK, or why the queue pair no longer works; ask after Work.
  const absl::Status& failure() const { return failure_; }
  bool HasWork(bool deliver) const;
  // A part that the peer sent by the control stream.
  absl::Status TakePart(const ControlPart& part);

  // When the queue pair has failed unless a SEND completes before.
  std::optional<Time> deadline() const { return stalls_at_; }
  void OnDeadline(Time now);

  // Every part that the peer is not known to have taken. Call it once, before Destroy.
  std::vector<ControlPart> TakeUndelivered();
  // Ends the queue pair; nothing is sent or received from now on. False: the device refuses, and
  // `client` is called once it is destroyed; then call OnDestroyed. Until then the device may
  // access the buffers.
  bool Destroy(DestroyQueue::Client* client);
  void OnDestroyed();
  bool destroyed() const { return state_ == State::kOver; }

  // --- WorkOwner ---
  void OnDone(const WorkId& id, const ibv_wc& wc) override;

 private:
  // kOpen → kUndestroyed (Destroy) → kOver.
  enum class State : uint8_t { kOpen, kUndestroyed, kOver };
  static constexpr size_t kMaxBacklog = 64 * 1024;
  // How many SENDs have one completion.
  static constexpr uint32_t kSignalEvery = 8;
  struct Receive {
    uint64_t number = 0;  // in its work request
    MessageBuffer buffer{};
    size_t bytes = 0;  // that have arrived
  };
  struct Unacknowledged {
    MessageBuffer buffer{};
    size_t bytes = 0;  // of the part
    bool more = false;
  };

  MessageBuffers& buffers() const;
  absl::Status PostReceive(const MessageBuffer& buffer);
  absl::Status PostReceivesAgain(const MessageBuffer& buffer, bool of_part);
  void OnReceived(const ibv_wc& wc);
  absl::Status Take(const Receive& receive);
  absl::Status Join(std::span<const std::byte> part, bool more);
  void OnTaken();
  // Posts parts of `message` from `at` on, as long as there is credit. True: it is all posted.
  bool PostParts(std::span<const std::byte> message, size_t& at);
  void PostPart(const MessageBuffer& buffer, std::span<const std::byte> part, bool more);
  bool CanPostPart() const;
  void SendBacklog();
  void SendCreditIfDue();
  void PostSend(const MessageBuffer& buffer, size_t bytes);
  void OnSent(uint64_t number);
  void WatchStall();
  // No effect after the first one.
  void Fail(absl::Status why);

  VerbsBackend* const backend_;
  Client* const client_;
  const std::string where_;
  Device* const device_;
  std::unique_ptr<QueuePair> pair_;
  const QpAddress address_;
  std::optional<uint16_t> slot_;
  uint64_t first_ = 0;  // number of its first work request
  uint64_t next_ = 0;
  State state_ = State::kOpen;
  absl::Status failure_;

  SendCredit credit_;
  // As many as kDepths says at most: with so few, moving them up costs less than a deque's block.
  std::vector<Receive> receives_;  // posted, in that order
  std::vector<Receive> arrived_;
  PartJoiner joiner_;
  uint64_t due_since_ = 0;  // the Poll in which credit was found to be due; 0: none

  std::vector<Unacknowledged> unacknowledged_;
  std::vector<uint64_t> posted_;     // SENDs that may still be in the send queue
  uint64_t signalled_ = 0;           // the last one that completes by itself
  uint32_t unsignalled_ = 0;         // SENDs since
  std::deque<std::string> backlog_;  // messages without credit; of the first from backlog_at_ on
  size_t backlog_at_ = 0;
  size_t backlog_bytes_ = 0;
  bool waited_ = false;                         // for credit, since the last part
  std::optional<MessageBuffer> credit_buffer_;  // of a device that does not send inline
  std::optional<Time> stalls_at_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_CONTROL_PAIR_H_
