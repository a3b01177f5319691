#include "src/transport/host/message_ring.h"

#include <algorithm>
#include <cstring>

#include "src/transport/host/message_order.h"

namespace kvxfer {
namespace {

// Records begin at multiples of this, so that no header wraps around.
constexpr uint64_t kUnit = sizeof(RingRecord);

uint64_t Occupied(uint64_t body) { return kUnit + (body + kUnit - 1) / kUnit * kUnit; }

}  // namespace

bool RingSender::HasSpace(uint64_t bytes) {
  if (ring_.bytes - (head_ - tail_seen_) >= bytes) return true;
  // Sequentially consistent here and in BellDue: either this load sees the new space, or the
  // receiver sees that the sender waits.
  const uint64_t tail = ring_.words->tail.load(std::memory_order_seq_cst);
  // A receiver that claims to have read more than was written gains no space by it.
  if (tail < tail_seen_ || tail > head_) return false;
  tail_seen_ = tail;
  return ring_.bytes - (head_ - tail_seen_) >= bytes;
}

void RingSender::Copy(uint64_t at, std::string_view bytes) {
  const uint64_t offset = at & (ring_.bytes - 1);
  const size_t first = std::min<size_t>(bytes.size(), ring_.bytes - offset);
  std::memcpy(ring_.data + offset, bytes.data(), first);
  if (first < bytes.size()) {
    std::memcpy(ring_.data, bytes.data() + first, bytes.size() - first);
  }
}

bool RingSender::Push(uint64_t after, RingRecord::Kind kind, std::string_view body) {
  const uint64_t bytes = Occupied(body.size());
  if (!HasSpace(bytes)) {
    ring_.words->sender_waits.store(1, std::memory_order_seq_cst);
    // Checked again: the receiver may have read before it could see the flag.
    if (!HasSpace(bytes)) return false;
    ring_.words->sender_waits.store(0, std::memory_order_relaxed);
  }
  const RingRecord record{
      .bytes = static_cast<uint32_t>(body.size()), .kind = kind, .after = after};
  std::memcpy(ring_.data + (head_ & (ring_.bytes - 1)), &record, sizeof(record));
  Copy(head_ + kUnit, body);
  head_ += bytes;
  MessageIsSent();
  // Publishes the record. Sequentially consistent, like the load in BellDue: either that load sees
  // that the receiver sleeps, or the receiver's check in Arm sees the record.
  ring_.words->head.store(head_, std::memory_order_seq_cst);
  return true;
}

bool RingSender::BellDue() {
  return ring_.words->receiver_sleeps.load(std::memory_order_seq_cst) != 0 &&
         ring_.words->receiver_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

RingReceiver::Got RingReceiver::Peek(RingRecord& record) const {
  // Acquire: pairs with the store in Push, so the record's bytes are visible.
  const uint64_t filled = ring_.words->head.load(std::memory_order_acquire) - tail_;
  if (filled == 0) return Got::kNothing;
  if (filled > ring_.bytes || filled < kUnit) return Got::kDamaged;
  MessageHasCome();
  std::memcpy(&record, ring_.data + (tail_ & (ring_.bytes - 1)), sizeof(record));
  const bool good = record.kind <= RingRecord::Kind::kMoved &&
                    record.bytes <= Ring::MaxRecordBytes(ring_.bytes) &&
                    Occupied(record.bytes) <= filled;
  return good ? Got::kRecord : Got::kDamaged;
}

void RingReceiver::Pop(const RingRecord& record, std::span<std::byte> body) {
  const uint64_t offset = (tail_ + kUnit) & (ring_.bytes - 1);
  const size_t first = std::min<size_t>(record.bytes, ring_.bytes - offset);
  std::memcpy(body.data(), ring_.data + offset, first);
  if (first < record.bytes) std::memcpy(body.data() + first, ring_.data, record.bytes - first);
  tail_ += Occupied(record.bytes);
  // See HasSpace.
  ring_.words->tail.store(tail_, std::memory_order_seq_cst);
}

bool RingReceiver::BellDue() {
  return ring_.words->sender_waits.load(std::memory_order_seq_cst) != 0 &&
         ring_.words->sender_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingReceiver::Arm() {
  ring_.words->receiver_sleeps.store(1, std::memory_order_seq_cst);
  // Checked after the flag is set; see Push.
  return ring_.words->head.load(std::memory_order_seq_cst) == tail_;
}

void RingReceiver::Disarm() {
  if (ring_.words->receiver_sleeps.load(std::memory_order_relaxed) == 0) return;
  ring_.words->receiver_sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace kvxfer
