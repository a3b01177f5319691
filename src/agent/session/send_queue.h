// Transfers to one peer that have been posted and not begun, in the order in which they may begin:
// by priority, then posting. Those whose notifications are numbered as they begin keep their order:
// none has a higher priority than one before it.
//
// Of a *layer stream*, such as the layers of one request, only the first is among them: the next
// takes its place when that one has been sent. So what belongs together is sent in order, and a
// layer stream of many takes turns with others as one.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_SEND_QUEUE_H_
#define KVXFER_AGENT_SESSION_SEND_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "src/agent/engine/transfer_record.h"
#include "src/core/base/keeping_allocator.h"

namespace kvxfer {

class SendQueue {
 public:
  using Predicate = absl::FunctionRef<bool(const internal::TransferRecord&)>;

  void Push(TransferPtr record);

  // Nothing may begin now.
  bool idle() const { return ready_.empty(); }
  // What may begin next, unless idle. Pop takes it; it then holds its layer_stream, if it is of
  // one, until NextOf.
  const TransferPtr& front() const { return ready_.begin()->second; }
  TransferPtr Pop();
  // Whoever held the stream has been sent, or never will be. True: another of it may begin.
  bool NextOf(uint64_t layer_stream);

  // Over all, those behind others of their stream included.
  bool empty() const { return ready_.empty() && waiting_ == 0; }
  bool AnyOf(Predicate which) const;
  void ForEach(absl::FunctionRef<void(const internal::TransferRecord&)> visit) const;
  // Takes one out; null: it is not here.
  TransferPtr Remove(uint64_t id);
  // Those that it takes out, in order, and in the order of posting in each stream.
  std::vector<TransferPtr> Remove(Predicate which);

 private:
  using Place = std::pair<int64_t, uint64_t>;  // priority, the highest first; then posting

  void PushReady(TransferPtr record);
  using Ready = std::map<Place, TransferPtr, std::less<>,
                         KeepingAllocator<std::pair<const Place, TransferPtr>>>;
  TransferPtr TakeReady(Ready::iterator at);

  Ready ready_;
  uint64_t pushed_ = 0;
  std::multiset<int64_t, std::less<>, KeepingAllocator<int64_t>>
      numbered_;  // priorities of the numbered ones in ready_
  // Of each stream of which one is in ready_, or holds it, those that are behind that.
  std::unordered_map<uint64_t, std::deque<TransferPtr>> layer_streams_;
  size_t waiting_ = 0;  // in layer_streams_
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_SEND_QUEUE_H_
