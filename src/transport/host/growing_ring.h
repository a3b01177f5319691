// One direction of messages in a small ring, which a large one replaces, once, when the small one
// is too small.
//
// The sender makes the large ring, passes it over the peers' socket, puts the record kMoved into
// the small ring, and every later record into the large one. It does not wait for an answer,
// because a message has to go out although its sender may not look for answers for long. The
// receiver takes out what the small ring holds, finds kMoved, and goes on with the large ring. So
// records keep their order. A receiver that cannot map the large ring says so and stays with the
// small one; the sender then takes back what it has put into the large ring, which nobody has read,
// and sends it through the small one, behind kMoved.
//
// Each ring has words of its own, so that everything that the other side writes is checked against
// the ring that is in use. No wake-up is lost: a receiver that sleeps has armed the small ring, and
// is rung for kMoved; a sender that waits for space in the small ring has not moved yet.
//
// Thread-safety: as of message_ring.h.

#ifndef KVXFER_TRANSPORT_HOST_GROWING_RING_H_
#define KVXFER_TRANSPORT_HOST_GROWING_RING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "src/transport/host/message_ring.h"

namespace kvxfer {

// A peer that says little has small rings for as long as it lives. One that needs more gets the
// large one at once: there is one growth to check and to bound, and a size in between would save at
// most 60 KiB for a peer that does talk.
using SmallRing = RingMemory<4 * 1024>;
using LargeRing = RingMemory<64 * 1024>;

// How far a direction is, at one side.
//
//   sender    kSmall → kOffered → kLarge      kOffered, kLarge → kRefused
//   receiver  kSmall → kOffered → kLarge      kSmall → kRefused → kStays
//
// Nothing else follows. A frame or a record that has no place in a state breaks the protocol: a
// second large ring, a refusal of none, kMoved a second time or without a large ring.
enum class RingGrowth : uint8_t {
  kSmall,    // nothing was offered
  kOffered,  // sender: the large ring was passed; kMoved precedes the next record. Receiver: it is
             // mapped; records still come through the small one
  kLarge,    // kMoved was put, or was found
  kRefused,  // the receiver has no large ring, or the sender none to offer. The small one stays
  kStays,    // receiver: kMoved, which is void, was found
};

class GrowingSender {
 public:
  GrowingSender() = default;
  explicit GrowingSender(const Ring& small)
      : ring_(small), max_record_(Ring::MaxRecordBytes(small.bytes)), small_max_(max_record_) {}

  RingGrowth growth() const { return growth_; }
  // The large ring was passed to the receiver. Call it in kSmall.
  void Offer(const Ring& large) {
    large_ = large;
    growth_ = RingGrowth::kOffered;
    max_record_ = Ring::MaxRecordBytes(large.bytes);
  }
  // There is no large ring. Call it in kSmall.
  void Refuse() { growth_ = RingGrowth::kRefused; }

  // The most bytes of the next record's body.
  size_t max_record() const { return max_record_; }
  // As RingSender's.
  bool Push(uint64_t after, RingRecord::Kind kind, std::string_view body) {
    if (growth_ == RingGrowth::kOffered && !Move(after)) return false;
    return ring_.Push(after, kind, body);
  }
  bool BellDue() {
    const bool moved = std::exchange(moved_bell_due_, false);
    return ring_.BellDue() || moved;
  }

  // The receiver says that it has no large ring. `take` gets every record that was put there, in
  // order, to be pushed again before any other. False: it broke the rules.
  bool TakeBack(absl::FunctionRef<void(RingRecord::Kind, std::string body)> take);

 private:
  bool Move(uint64_t after);

  RingSender ring_;
  size_t max_record_ = 0;
  RingGrowth growth_ = RingGrowth::kSmall;
  bool moved_bell_due_ = false;  // the receiver slept at the small ring when kMoved was put
  size_t small_max_ = 0;
  RingSender small_;  // as it was left
  Ring large_;
};

class GrowingReceiver {
 public:
  // kEarly: kMoved has come before the large ring, which was passed before it.
  enum class Got { kRecord, kNothing, kEarly, kDamaged };

  GrowingReceiver() = default;
  explicit GrowingReceiver(const Ring& small) : ring_(small) {}

  RingGrowth growth() const { return growth_; }
  // The sender has passed a large ring, which is mapped; or is not. Call them in kSmall.
  void Offer(const Ring& large) {
    large_ = large;
    growth_ = RingGrowth::kOffered;
  }
  void Refuse() { growth_ = RingGrowth::kRefused; }

  // As RingReceiver's. Peek finds no kMoved, because it follows it.
  bool filled() const { return ring_.filled(); }
  Got Peek(RingRecord& record) {
    const Got got = PeekHere(record);
    return got == Got::kRecord && record.kind == RingRecord::Kind::kMoved ? Follow(record) : got;
  }
  void Pop(const RingRecord& record, std::span<std::byte> body) { ring_.Pop(record, body); }
  bool BellDue() { return ring_.BellDue(); }
  bool Arm() { return ring_.Arm(); }
  void Disarm() { ring_.Disarm(); }

 private:
  Got PeekHere(RingRecord& record) const;
  Got Follow(RingRecord& record);

  RingReceiver ring_;
  RingGrowth growth_ = RingGrowth::kSmall;
  Ring large_;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_GROWING_RING_H_
