// Whether the link that control frames take still lets them through. An acknowledgement comes with
// the peer's next message, which may take its time; but the pong behind a frame acknowledges it. So
// a frame that waits is followed by a ping, and a link that owes the pong for too long is avoided.
//
// Used only while frames could take another link as well. Pure.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_CORE_PROTOCOL_FRAME_WATCH_H_
#define KVXFER_CORE_PROTOCOL_FRAME_WATCH_H_

#include <chrono>
#include <cstdint>

#include "src/core/base/clock.h"

namespace kvxfer {

class FrameWatch {
 public:
  // Between two looks at what waits: once to twice that, on a grid, so that one wake-up serves all
  // peers.
  static constexpr Duration kLook = std::chrono::milliseconds(100);
  // A link without an answer for so long is avoided: a hundred times what a network takes.
  static constexpr Duration kAnswersWithin = std::chrono::milliseconds(300);

  // The link that frames take now.
  struct Carrier {
    bool owes = false;     // it has not answered a ping
    bool avoided = false;  // and for so long that it is taken only because no link answers
  };
  enum class Step : uint8_t {
    kNone,
    kPing,       // over that link
    kAvoid,      // avoid that link
    kSendAgain,  // it answers, and did not have the frame: send what waits over it, and Restart
  };
  // `oldest`: the number of the oldest frame that is not acknowledged.
  Step Look(uint64_t oldest, Carrier carrier, Time now);
  // When to look again, while a frame waits. Time::max(): not before a link answers.
  Time NextLook(Carrier carrier) const {
    return carrier.owes && carrier.avoided ? Time::max() : next_;
  }
  // What waits has been sent again.
  void Restart() { waiting_ = 0; }

 private:
  Time next_{};           // look; zero: at once
  uint64_t waiting_ = 0;  // the oldest frame at the last look; 0: none
  Time pinged_{};         // for its sake; zero: not yet
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_FRAME_WATCH_H_
