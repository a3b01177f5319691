#include "src/backends/shm/ring.h"

#include <algorithm>
#include <cstring>

#include "src/transport/host/message_order.h"

namespace kvxfer::shm {
namespace {

// Records begin at multiples of this, so that no header wraps around.
constexpr uint64_t kUnit = sizeof(RingRecord);
static_assert(RingMemory::kBytes % kUnit == 0);

uint64_t Occupied(uint64_t body) { return kUnit + (body + kUnit - 1) / kUnit * kUnit; }

}  // namespace

bool RingSender::HasSpace(uint64_t bytes) {
  if (RingMemory::kBytes - (head_ - tail_seen_) >= bytes) return true;
  // Sequentially consistent here and in BellDue: either this load sees the new space, or the
  // receiver sees that the sender waits.
  const uint64_t tail = memory_->tail.load(std::memory_order_seq_cst);
  // A receiver that claims to have read more than was written gains no space by it.
  if (tail < tail_seen_ || tail > head_) return false;
  tail_seen_ = tail;
  return RingMemory::kBytes - (head_ - tail_seen_) >= bytes;
}

void RingSender::Copy(uint64_t at, std::string_view bytes) {
  const uint64_t offset = at % RingMemory::kBytes;
  const size_t first = std::min<size_t>(bytes.size(), RingMemory::kBytes - offset);
  std::memcpy(memory_->data + offset, bytes.data(), first);
  std::memcpy(memory_->data, bytes.data() + first, bytes.size() - first);
}

bool RingSender::Push(uint64_t after, bool more, std::string_view body) {
  const uint64_t bytes = Occupied(body.size());
  if (!HasSpace(bytes)) {
    memory_->sender_waits.store(1, std::memory_order_seq_cst);
    // Checked again: the receiver may have read before it could see the flag.
    if (!HasSpace(bytes)) return false;
    memory_->sender_waits.store(0, std::memory_order_relaxed);
  }
  const RingRecord record{
      .bytes = static_cast<uint32_t>(body.size()), .more = more ? 1u : 0u, .after = after};
  Copy(head_, {reinterpret_cast<const char*>(&record), sizeof(record)});
  Copy(head_ + kUnit, body);
  head_ += bytes;
  MessageIsSent();
  // Publishes the record. Sequentially consistent, like the load in BellDue: either that load sees
  // that the receiver sleeps, or the receiver's check in Arm sees the record.
  memory_->head.store(head_, std::memory_order_seq_cst);
  return true;
}

bool RingSender::BellDue() {
  return memory_->receiver_sleeps.load(std::memory_order_seq_cst) != 0 &&
         memory_->receiver_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

RingReceiver::Got RingReceiver::Peek(RingRecord& record) const {
  // Acquire: pairs with the store in Push, so the record's bytes are visible.
  const uint64_t filled = memory_->head.load(std::memory_order_acquire) - tail_;
  if (filled == 0) return Got::kNothing;
  if (filled > RingMemory::kBytes || filled < kUnit) return Got::kDamaged;
  MessageHasCome();
  std::memcpy(&record, memory_->data + tail_ % RingMemory::kBytes, sizeof(record));
  const bool good = record.bytes <= kMaxRecordBytes && Occupied(record.bytes) <= filled;
  return good ? Got::kRecord : Got::kDamaged;
}

void RingReceiver::Pop(const RingRecord& record, std::span<std::byte> body) {
  const uint64_t offset = (tail_ + kUnit) % RingMemory::kBytes;
  const size_t first = std::min<size_t>(record.bytes, RingMemory::kBytes - offset);
  std::memcpy(body.data(), memory_->data + offset, first);
  std::memcpy(body.data() + first, memory_->data, record.bytes - first);
  tail_ += Occupied(record.bytes);
  // See HasSpace.
  memory_->tail.store(tail_, std::memory_order_seq_cst);
}

bool RingReceiver::BellDue() {
  return memory_->sender_waits.load(std::memory_order_seq_cst) != 0 &&
         memory_->sender_waits.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingReceiver::Arm() {
  memory_->receiver_sleeps.store(1, std::memory_order_seq_cst);
  // Checked after the flag is set; see Push.
  return memory_->head.load(std::memory_order_seq_cst) == tail_;
}

void RingReceiver::Disarm() {
  if (memory_->receiver_sleeps.load(std::memory_order_relaxed) == 0) return;
  memory_->receiver_sleeps.store(0, std::memory_order_relaxed);
}

}  // namespace kvxfer::shm
