// Posts the data of the transfers to one peer: whose turn it is, its next slice, the rail that the
// slice takes, and empty writes that close lanes. What is next of a transfer is SendTracker's word.
//
// Transfers of one priority take turns, a slice each, so that a large one does not hold up a small
// one; a lower priority gets what the higher ones cannot use. A transfer that its application holds
// back (TransferOptions::ready, after) keeps its place.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_SENDER_H_
#define KVXFER_AGENT_SESSION_SENDER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvxfer/backend.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/outbound.h"
#include "src/agent/staging/stager.h"
#include "src/core/base/clock.h"
#include "src/core/protocol/send_tracker.h"
#include "src/cuda/stream_order.h"

namespace kvxfer {

class Sender {
 public:
  class User {
   public:
    virtual ~User() = default;
    // All of a transfer that held the layer stream is posted, or it ends.
    virtual void OnLayerPosted(uint64_t layer_stream) = 0;
  };

  // All of them outlive the sender. `stager` takes the ops of staged transfers.
  Sender(Runtime* runtime, SendTracker* tracker, Stager* stager, User* user)
      : runtime_(runtime), tracker_(tracker), stager_(stager), user_(user) {}

  // It has something to post, or waits to be let go: a place behind those of its priority, unless
  // it has one. Its link must be there as long as it has the place.
  void Start(Outbound& outbound);
  // It ends: nothing more of it is posted.
  void Stop(Outbound& outbound);
  // How many ops, each of kInlineCopyBytes at most, may be done in a pass while others wait.
  static constexpr size_t kMaxDone = 64;
  // A round: posts what the rails take, until `most` ops are done, at least one. Ends nothing but
  // what can never be let go.
  void Post(Time now, size_t most);
  // Ops that were done when they were posted. Exchanges the list for `done`, which it empties.
  void TakeDone(std::vector<uint64_t>& done);

  // Some have data that is not posted yet.
  bool sends() const { return !sending_.empty(); }
  // A transfer is held back by a ready flag, which nothing signals.
  bool waits_ready() const { return waits_ready_; }
  // When points in CUDA streams are to be looked at; Time::max(): nobody waits for one.
  Time next_point() const { return points_.next(); }
  // The connection whose backend holds data that is to go together with the message that is sent
  // next over it (Op::sole); null: there is none.
  Link* inline_link() const { return inline_link_; }
  void OnMessagesSent() { inline_link_ = nullptr; }

 private:
  // False: it could not post anything now.
  bool TakeTurn(Outbound& outbound, Time now);
  bool HeldBack(Outbound& outbound);
  bool Prepare(Outbound& outbound);
  void DropPrepared(Outbound& outbound);
  bool PostPrepared(Outbound& outbound);
  bool PostStaged(Outbound& outbound);
  bool PostPreparedOn(Outbound& outbound, OpTable::Entry& entry, uint32_t rail,
                      const SendTransfer::Offered& offered);
  bool PostOn(const Outbound& outbound, const Op& op);
  void CloseLanes(Outbound& outbound);
  void ReleaseLayerStream(Outbound& outbound);

  Runtime* const runtime_;
  SendTracker* const tracker_;
  Stager* const stager_;
  User* const user_;
  std::vector<Outbound*> sending_;  // have data to post; by priority, then posting
  std::vector<uint64_t> done_;      // ops
  cuda::PointPoll points_;          // what transfers wait for in CUDA streams
  bool waits_ready_ = false;
  Link* inline_link_ = nullptr;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_SENDER_H_
