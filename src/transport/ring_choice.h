// What an agent's option `control` makes of rings: whether it uses them, and what follows when an
// endpoint has none. A backend has one.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_RING_CHOICE_H_
#define KVXFER_TRANSPORT_RING_CHOICE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "kvxfer/options.h"

namespace kvxfer::net {

class RingChoice {
 public:
  RingChoice(std::string backend, ControlCarrier control)
      : backend_(std::move(backend)), control_(control) {}

  // OK: messages go through rings where that can be. Otherwise why they do not, as a peer may be
  // told.
  absl::Status Wanted() const;
  // An endpoint has no rings, because of `why`. OK: its messages go another way, which is logged
  // once. An error: the endpoint must go down with it.
  absl::Status DoWithout(const absl::Status& why);

 private:
  const std::string backend_;
  const ControlCarrier control_;
  bool logged_ = false;
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_RING_CHOICE_H_
