// What a backend's next Poll reports, oldest first, with the bytes of its messages.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_CORE_EVENT_QUEUE_H_
#define KVXFER_CORE_EVENT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <span>
#include <utility>

#include "kvxfer/backend.h"

namespace kvxfer {

// `Bytes`: how a message is kept; a contiguous container.
template <typename Bytes>
class EventQueue {
 public:
  // `message`: of a kMessage.
  void Push(Event event, Bytes message = {}) {
    waiting_.push_back({std::move(event), std::move(message)});
  }

  // Fills `out` from the front and returns how many. Messages stay valid until the next Take.
  size_t Take(std::span<Event> out) {
    given_.clear();
    size_t n = 0;
    for (; n < out.size() && !waiting_.empty(); ++n) {
      Waiting& front = waiting_.front();
      out[n] = std::move(front.event);
      if (out[n].kind == EventKind::kMessage) {
        given_.push_back(std::move(front.message));
        out[n].message = std::as_bytes(std::span(given_.back()));
      }
      waiting_.pop_front();
    }
    return n;
  }

  // The endpoint is being destroyed: nothing about it is reported any more.
  void Purge(const Endpoint* endpoint) {
    std::erase_if(waiting_, [endpoint](const Waiting& w) { return w.event.endpoint == endpoint; });
  }
  void Clear() {
    // Events may own endpoints, whose destructors purge this very queue.
    std::deque<Waiting> dying;
    dying.swap(waiting_);
  }

  size_t size() const { return waiting_.size(); }
  bool empty() const { return waiting_.empty(); }

 private:
  struct Waiting {
    Event event;
    Bytes message;
  };
  std::deque<Waiting> waiting_;
  std::deque<Bytes> given_;  // a deque: growing it must not move short strings
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_EVENT_QUEUE_H_
