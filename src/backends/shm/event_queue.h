// What the next Poll reports, oldest first.

#ifndef KVXFER_BACKENDS_SHM_EVENT_QUEUE_H_
#define KVXFER_BACKENDS_SHM_EVENT_QUEUE_H_

#include <deque>
#include <span>
#include <string>
#include <utility>

#include "kvxfer/backend.h"

namespace kvxfer::shm {

class EventQueue {
 public:
  void Push(Event event) { waiting_.push_back({std::move(event), {}}); }
  void PushMessage(Endpoint* endpoint, std::string message) {
    Waiting waiting;
    waiting.event.kind = EventKind::kMessage;
    waiting.event.endpoint = endpoint;
    waiting.message = std::move(message);
    waiting_.push_back(std::move(waiting));
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
    std::string message;
  };
  std::deque<Waiting> waiting_;
  std::deque<std::string> given_;  // a deque: growing it must not move short strings
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_EVENT_QUEUE_H_
