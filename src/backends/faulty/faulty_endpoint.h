// An endpoint that lets ops, immediates and messages pass when the seed says so.
//
// Ops are held here before the inner endpoint sees them, and incoming events before the agent sees
// them. Each side draws separately.
//
// Thread-safety: none; called by its agent's driver only.

#ifndef KVXFER_BACKENDS_FAULTY_FAULTY_ENDPOINT_H_
#define KVXFER_BACKENDS_FAULTY_FAULTY_ENDPOINT_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "kvxfer/backend.h"
#include "src/backends/faulty/hold_queue.h"
#include "src/backends/faulty/rail_faults.h"
#include "src/core/base/clock.h"

namespace kvxfer::faulty {

class FaultyBackend;

// An event that has not reached the agent yet. It owns its message, because the inner backend keeps
// a message only until its own next Poll.
struct Pending {
  Event event;
  std::vector<std::byte> message;
};

class FaultyEndpoint : public Endpoint {
 public:
  FaultyEndpoint(FaultyBackend* backend, std::unique_ptr<Endpoint> inner, bool accepted);
  ~FaultyEndpoint() override;

  EndpointInfo Describe() const override;
  void Authorize() override;
  Posted Post(const Op& op) override;
  bool Send(std::span<const std::byte> message) override;
  void Fence(FenceScope scope) override;
  uint32_t rail_distance(uint32_t rail, const Registration& local,
                         const RemoteKey& remote) const override;
  void ReopenRail(uint32_t rail) override;
  void Shutdown(absl::Status why) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  const Endpoint* inner() const { return inner_.get(); }
  // Handles an event of the inner endpoint, except kAccepted.
  void OnInner(Event event);
  // Releases what is due at `now`, in both directions.
  void Progress(Time now);
  // When Progress has something to release. Nothing: not before the inner endpoint reports
  // something.
  std::optional<Time> NextDue() const;
  // The backend is destroyed first. The endpoint remains, closed.
  void Detach();

 private:
  enum class Phase : uint8_t { kOpen, kClosing, kDown };
  struct HeldOp {
    Op op;  // its blocks stay valid until the completion, so they need no copy
    uint64_t sequence = 0;
  };
  struct SlowOp {
    Time due;
    HeldOp held;
  };
  struct HeldMessage {
    std::vector<std::byte> bytes;
    uint64_t after = 0;  // sent once no op with a lower sequence is held
  };

  bool Swallowed() const { return swallowing_ && phase_ == Phase::kOpen; }
  void CountTowardsBlackHole();
  bool CutNow();
  bool RailUp(uint32_t rail) const;
  void Start(bool connecting);
  // Passes an accepted op on its way: to the black hole, to an injected error, or to a queue.
  void Take(const HeldOp& held, Time now);
  void FenceTransfer(uint64_t transfer);
  void FenceRail(uint32_t rail);
  void OnInnerRail(Event event);
  void OnInnerFenced(Event event);
  void FailRail(uint32_t rail);
  void ProgressRails(Time now);
  // Removes and returns matching ops that the inner endpoint has not seen.
  template <typename Match>
  std::vector<HeldOp> ExtractHeldOps(Match match) {
    std::vector<HeldOp> taken;
    std::erase_if(slow_ops_, [&](const SlowOp& slow) {
      if (match(slow.held)) taken.push_back(slow.held);
      return match(slow.held);
    });
    ops_.Extract(match, taken);
    std::erase_if(released_, [&](const Op& op) {
      const HeldOp held{.op = op};
      if (match(held)) taken.push_back(held);
      return match(held);
    });
    return taken;
  }
  bool HasEarlierHeldOps(uint64_t sequence) const;
  size_t Backlog() const;
  void ProgressOutgoing(Time now);
  void Forward();
  void ForwardMessages();
  void FlushIncoming();
  void OnInnerDown(const absl::Status& why);
  void FailHeldOps(const absl::Status& why);
  Pending Completion(const Op& op, absl::Status status);

  FaultyBackend* backend_;  // null after Detach
  std::unique_ptr<Endpoint> inner_;
  const bool accepted_;
  Phase phase_ = Phase::kOpen;

  // Outgoing, in this order: slow rail, reordering and delay, waiting for the inner endpoint to
  // accept.
  std::deque<SlowOp> slow_ops_;
  HoldQueue<HeldOp> ops_;
  std::vector<Op> released_;
  std::deque<HeldMessage> messages_;
  size_t message_bytes_ = 0;
  uint64_t last_sequence_ = 0;

  HoldQueue<Pending> incoming_;
  // Connecting side: the inner endpoint's rails, as its events have said so far.
  std::vector<bool> inner_up_;
  RailFaults rails_;

  // The black hole: how much it has counted, whether it is open, the ops it took, and the loss that
  // it hides.
  uint64_t passed_ = 0;
  bool swallowing_ = false;
  std::vector<HeldOp> swallowed_ops_;
  std::optional<absl::Status> hidden_down_;
};

}  // namespace kvxfer::faulty

#endif  // KVXFER_BACKENDS_FAULTY_FAULTY_ENDPOINT_H_
