#include "src/transport/host/growing_ring.h"

#include <atomic>
#include <cstddef>

namespace kvxfer {

bool GrowingSender::Move(uint64_t after) {
  if (!ring_.Push(after, RingRecord::Kind::kMoved, "")) return false;
  // Of the small ring, for the last time: the receiver may sleep there.
  moved_bell_due_ = ring_.BellDue();
  small_ = std::exchange(ring_, RingSender(large_));
  growth_ = RingGrowth::kLarge;
  return true;
}

bool GrowingSender::TakeBack(absl::FunctionRef<void(RingRecord::Kind, std::string)> take) {
  const RingGrowth before = std::exchange(growth_, RingGrowth::kRefused);
  max_record_ = small_max_;
  if (before == RingGrowth::kOffered) return true;
  if (before != RingGrowth::kLarge) return false;
  ring_ = small_;
  // Who has no large ring has read nothing there.
  if (large_.words->tail.load(std::memory_order_relaxed) != 0) return false;
  RingReceiver own(large_);
  for (RingRecord record;;) {
    const RingReceiver::Got got = own.Peek(record);
    if (got != RingReceiver::Got::kRecord) return got == RingReceiver::Got::kNothing;
    std::string body(record.bytes, '\0');
    own.Pop(record, std::as_writable_bytes(std::span(body)));
    take(record.kind, std::move(body));
  }
}

GrowingReceiver::Got GrowingReceiver::PeekHere(RingRecord& record) const {
  switch (ring_.Peek(record)) {
    case RingReceiver::Got::kRecord:
      return Got::kRecord;
    case RingReceiver::Got::kNothing:
      return Got::kNothing;
    case RingReceiver::Got::kDamaged:
      break;
  }
  return Got::kDamaged;
}

GrowingReceiver::Got GrowingReceiver::Follow(RingRecord& record) {
  if (record.bytes != 0) return Got::kDamaged;
  switch (growth_) {
    case RingGrowth::kSmall:
      return Got::kEarly;
    case RingGrowth::kOffered:
      // The space of kMoved in the small ring is not given back: nobody writes there again.
      ring_ = RingReceiver(large_);
      growth_ = RingGrowth::kLarge;
      break;
    case RingGrowth::kRefused: {
      std::byte none;
      ring_.Pop(record, {&none, 1});
      growth_ = RingGrowth::kStays;
      break;
    }
    case RingGrowth::kLarge:
    case RingGrowth::kStays:
      return Got::kDamaged;
  }
  const Got got = PeekHere(record);
  const bool again = got == Got::kRecord && record.kind == RingRecord::Kind::kMoved;
  return again ? Got::kDamaged : got;
}

}  // namespace kvxfer
