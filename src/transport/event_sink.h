// Collects events: in the caller's span while Poll runs, otherwise in a queue that the next Poll
// returns first. The order of emission is kept.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_EVENT_SINK_H_
#define KVXFER_TRANSPORT_EVENT_SINK_H_

#include <cstdint>
#include <deque>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/transport/event_queue.h"

namespace kvxfer::net {

class EventSink {
 public:
  void Begin(std::span<Event> out) {
    out_ = out;
    count_ = 0;
    while (count_ < out_.size() && !queue_.empty()) {
      out_[count_++] = std::move(queue_.front());
      queue_.pop_front();
    }
  }
  // The number of events returned since Begin.
  size_t End() {
    out_ = {};
    return std::exchange(count_, 0);
  }

  // True: events that are emitted now wait for the next Poll. A message must not be emitted then,
  // because its bytes would no longer be valid.
  bool full() const { return count_ == out_.size(); }
  // How many more events this Poll can return.
  size_t space() const { return out_.size() - count_; }
  bool waiting() const { return !queue_.empty(); }

  void Emit(Event event) {
    if (full()) {
      queue_.push_back(std::move(event));
    } else {
      out_[count_++] = std::move(event);
    }
  }
  void Say(EventKind kind, Endpoint* endpoint, uint64_t id = 0, absl::Status status = {},
           uint32_t rail = 0) {
    Emit(MakeEvent(kind, endpoint, id, std::move(status), rail));
  }

  // Drops the waiting events of an endpoint that is being destroyed.
  void Purge(const Endpoint* endpoint) {
    std::erase_if(queue_, [endpoint](const Event& e) { return e.endpoint == endpoint; });
  }
  // Takes the queue, so that the caller destroys the endpoints in it.
  std::deque<Event> TakeQueue() { return std::exchange(queue_, {}); }

 private:
  std::span<Event> out_;
  size_t count_ = 0;
  std::deque<Event> queue_;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_EVENT_SINK_H_
