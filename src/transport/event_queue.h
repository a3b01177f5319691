// The events that a backend's next Poll reports, oldest first, with the bytes of their messages;
// and functions that make events.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_EVENT_QUEUE_H_
#define KVXFER_TRANSPORT_EVENT_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kvxfer/backend.h"
#include "src/core/base/keeping_allocator.h"
#include "src/core/base/strings.h"

namespace kvxfer {

inline Event MakeEvent(EventKind kind, Endpoint* endpoint, uint64_t id = 0,
                       absl::Status status = {}, uint32_t rail = 0) {
  Event event;
  event.kind = kind;
  event.endpoint = endpoint;
  event.id = id;
  event.rail = rail;
  event.status = std::move(status);
  return event;
}

inline Event MakeAccepted(std::unique_ptr<Endpoint> accepted) {
  Event event = MakeEvent(EventKind::kAccepted, accepted.get());
  event.accepted = std::move(accepted);
  return event;
}

// The answer to Fence(scope).
inline Event MakeFenced(Endpoint* endpoint, FenceScope scope) {
  return MakeEvent(EventKind::kFenced, endpoint, scope.transfer, {}, scope.rail);
}

// Ends an op that was posted on the accepting side of `backend`.
inline Event MakeRefused(Endpoint* endpoint, const Op& op, std::string_view backend) {
  return MakeEvent(
      EventKind::kCompletion, endpoint, op.id,
      absl::FailedPreconditionError(absl::StrCat(
          ToAbsl(backend), ": ops are posted on the endpoint that connected; connect to the peer")),
      op.rail);
}

// Describes an endpoint whose one rail is up for as long as the endpoint is.
inline EndpointInfo OneRail(std::string path) {
  return {.path = std::move(path), .rails = std::vector<RailInfo>(1)};
}

// `Bytes`: the container of a message; must be contiguous.
template <typename Bytes>
class EventQueue {
 public:
  // `message`: the bytes of a kMessage event.
  void Push(Event event, Bytes message = {}) {
    waiting_.push_back({std::move(event), std::move(message)});
  }
  void Say(EventKind kind, Endpoint* endpoint, uint64_t id = 0, absl::Status status = {},
           uint32_t rail = 0) {
    Push(MakeEvent(kind, endpoint, id, std::move(status), rail));
  }
  void SayMessage(Endpoint* endpoint, Bytes message) {
    Push(MakeEvent(EventKind::kMessage, endpoint), std::move(message));
  }

  // An empty container, with the memory of a message that was taken before, if there is one.
  Bytes TakeSpare() { return std::exchange(spare_, {}); }

  // Moves events into `out` and returns their number. Messages stay valid until the next Take.
  size_t Take(std::span<Event> out) {
    if (!given_.empty()) ClearGiven();
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

  // The endpoint is being destroyed: drops its events.
  void Purge(const Endpoint* endpoint) {
    std::erase_if(waiting_, [endpoint](const Waiting& w) { return w.event.endpoint == endpoint; });
  }
  void Clear() {
    // Events may own endpoints, whose destructors call Purge on this queue.
    std::deque<Waiting> dying;
    dying.swap(waiting_);
  }

  size_t size() const { return waiting_.size(); }
  bool empty() const { return waiting_.empty(); }

 private:
  static constexpr size_t kMaxSpare = 1024;  // elements
  struct Waiting {
    Event event;
    Bytes message;
  };

  void ClearGiven() {
    // Under AddressSanitizer the use of a message that is gone is to be seen.
    if (KeepingAllocator<char>::kKeeps && given_.front().capacity() <= kMaxSpare) {
      spare_ = std::move(given_.front());
      spare_.clear();
    }
    given_.clear();
  }

  std::deque<Waiting> waiting_;
  std::deque<Bytes> given_;  // a deque: growing it does not move short strings
  Bytes spare_{};
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_EVENT_QUEUE_H_
