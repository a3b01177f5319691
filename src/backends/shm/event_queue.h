// What the next Poll of shm reports: messages come out of the rings as strings.

#ifndef KVXFER_BACKENDS_SHM_EVENT_QUEUE_H_
#define KVXFER_BACKENDS_SHM_EVENT_QUEUE_H_

#include <string>
#include <utility>

#include "src/core/event_queue.h"

namespace kvxfer::shm {

class EventQueue : public kvxfer::EventQueue<std::string> {
 public:
  void PushMessage(Endpoint* endpoint, std::string message) {
    Event event;
    event.kind = EventKind::kMessage;
    event.endpoint = endpoint;
    Push(std::move(event), std::move(message));
  }
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_EVENT_QUEUE_H_
