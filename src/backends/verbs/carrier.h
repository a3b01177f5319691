// What carries the messages of a verbs endpoint: its control stream, and a control pair once both
// sides have one (docs/protocol.md, "Carriers").
//
// The connecting side makes its queue pair over the first pair of ports that has proved to pass
// data, and offers it. The accepting side makes the other end and answers. Each side then says on
// the control stream that its later messages go over the pair (ControlUp), and takes nothing out of
// the pair before the other side has said so. Hence messages stay in order.
//
// Without a pair, or when it fails, a side says so (ControlLost). With ControlCarrier::kAuto
// messages then stay on the control stream for good. First come the parts that the peer may lack
// (ControlPart), by their numbers: so each message is reported once, and in order. With kRdma the
// endpoint goes down.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_CARRIER_H_
#define KVXFER_BACKENDS_VERBS_CARRIER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/options.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/control_pair.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/pairs.h"
#include "src/backends/verbs/queue_pair.h"
#include "src/backends/verbs/setup_queue.h"
#include "src/core/base/clock.h"

namespace kvxfer::verbs {

class Carrier final : private ControlPair::Client,
                      private SetupQueue::Client,
                      private DestroyQueue::Client {
 public:
  // The endpoint.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void TellPeer(const Blob& blob) = 0;
    // Call Work in the next turn.
    virtual void OnCarrierWork() = 0;
    virtual void OnCarrierDeadline() = 0;
    virtual bool TakesEvents() = 0;
    virtual void OnCarrierMessage(std::string message) = 0;
    // The endpoint must end.
    virtual void OnCarrierDown(const absl::Status& why) = 0;
    // quiet() has become true.
    virtual void OnCarrierQuiet() = 0;
    // For a person.
    virtual std::string PeerOfCarrier() const = 0;
  };

  enum class Side : uint8_t { kConnects, kAccepts };

  Carrier(VerbsBackend* backend, Owner* owner, Side side);
  ~Carrier() override;
  // The backend is being destroyed first; End was called.
  void Detach();

  // Whether Send goes over the control pair; otherwise it goes over the control stream.
  bool has_pair() const { return state_ == State::kHalfUp || state_ == State::kUp; }
  bool Send(std::span<const std::byte> message) { return pair_->Send(message); }

  // Connecting side: this pair of ports passes data.
  void OnRailUp(const Pair& ports);
  // Accepting side: the peer is authorised.
  void Authorize();
  // Whether a frame of the peer is for this class.
  static bool Handles(const Blob& blob);
  // An error ends the endpoint.
  absl::Status OnFrame(const Blob& blob);

  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  void OnPort(const Device& device, uint8_t port, ibv_event_type type);
  void OnQueuePair(const Device& device, uint32_t number, const absl::Status& why);
  void OnBroken(const Device& device, const absl::Status& why);

  // The endpoint ends: what the peer may lack goes to the control stream.
  void End();
  bool quiet() const { return pair_ == nullptr || pair_->destroyed(); }
  // "control by SEND (i0:1 → t0:1)", or by what else, and why.
  std::string Path() const;

 private:
  // The states and what may follow are in carrier.cc (kMoves).
  enum class State : uint8_t {
    kUnproved,    // accepting side: the peer is not authorised; its offer waits
    kIdle,        // no pair is being made yet
    kMaking,      // SetupQueue makes this end; accepting side: and connects it
    kOffered,     // connecting side: waits for the peer's end
    kConnecting,  // connecting side: SetupQueue connects this end
    kAnswered,    // accepting side: this end is ready; waits for the peer's ControlUp
    kHalfUp,      // connecting side: its messages go over the pair, the peer's do not yet
    kUp,          // all messages go over the pair
    kStream,      // no pair, for good
  };

  void MoveTo(State next);
  bool ended() const { return state_ == State::kStream; }
  // Messages of the peer go over the pair.
  bool delivers() const { return state_ == State::kUp; }
  // Makes this end over the port with that index; `to`: and connects it.
  void Make(size_t port, std::optional<QpAddress> to);
  // OK, or why no pair can be made there.
  absl::Status Check(size_t port) const;
  void SetUp(State state, SetupQueue::Job job);
  // This end is connected: it can receive.
  absl::Status Open();
  absl::Status OnOffer(const ControlOffer& offer);
  absl::Status OnAnswer(const ControlAnswer& answer);
  absl::Status OnPeerUp();
  void SayUp(State next);
  // There is no pair, or it has failed. `tell`: the peer does not know it.
  void Leave(const absl::Status& why, bool tell);
  // Passes to the control stream what the peer may lack, and destroys this end.
  void Close();

  // --- SetupQueue::Client, DestroyQueue::Client, ControlPair::Client ---
  void OnSetUp(uint32_t tag, absl::Status status, std::unique_ptr<QueuePair> pair) override;
  void OnDestroyed(uint32_t tag, Device& device, uint32_t number) override;
  void OnPairWork() override { owner_->OnCarrierWork(); }
  void OnPairDeadline() override { owner_->OnCarrierDeadline(); }
  bool TakesMessages() override { return owner_->TakesEvents(); }
  void OnPairMessage(std::string message) override { owner_->OnCarrierMessage(std::move(message)); }

  VerbsBackend* backend_;  // null once detached
  Owner* const owner_;
  const Side side_;
  State state_;
  std::optional<ControlOffer> offer_;  // kUnproved: the peer's
  Device* device_ = nullptr;           // of the pair that is being made, or is there
  LocalPort local_;                    // its port
  uint8_t peer_port_ = 0;              // connecting side: index into the peer's Ports
  uint64_t job_ = 0;                   // in SetupQueue; 0: none
  std::unique_ptr<QueuePair> made_;    // while it is not connected
  std::unique_ptr<ControlPair> pair_;  // kept after it has failed: it numbers the parts
  std::string ports_;                  // "i0:1 → t0:1"
  std::optional<Time> made_by_;
  absl::Status why_;  // kStream: why there is no pair
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_CARRIER_H_
