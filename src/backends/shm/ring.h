// One direction of messages between two processes: a ring of records in memory that both have
// mapped, with one sender and one receiver, and the two flags by which either tells that it sleeps.
//
// Nothing is sent by a system call here: whoever sleeps is woken by its bell, an eventfd, which the
// other side rings where Push or Pop say so. What the ring holds is the other process's word:
// lengths are checked, and a record is copied out before anybody looks into it.
//
// Thread-safety: none within one process; the two processes need no lock.

#ifndef KVXFER_BACKENDS_SHM_RING_H_
#define KVXFER_BACKENDS_SHM_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvxfer::shm {

// What both map. Each word has a cache line of its own, for each is written by one side while the
// other looks at it all the time.
struct RingMemory {
  static constexpr uint64_t kBytes = 64 * 1024;

  alignas(64) std::atomic<uint64_t> head{0};             // bytes ever written; by the sender
  alignas(64) std::atomic<uint64_t> tail{0};             // bytes ever read; by the receiver
  alignas(64) std::atomic<uint32_t> receiver_sleeps{0};  // set by the receiver, taken by the sender
  alignas(64) std::atomic<uint32_t> sender_waits{0};     // for room; the other way round
  alignas(64) std::byte data[kBytes];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// A message, or a part of one.
struct RingRecord {
  uint32_t bytes = 0;
  uint32_t more = 0;   // another part follows
  uint64_t after = 0;  // how many frames of the socket come before it
};
// Of one record: four of the largest fit, so that sender and receiver work side by side.
inline constexpr size_t kMaxRecordBytes = RingMemory::kBytes / 4 - sizeof(RingRecord);

class RingSender {
 public:
  RingSender() = default;
  explicit RingSender(RingMemory* memory) : memory_(memory) {}

  // False: no room; the receiver rings once there is some. `body` has at most kMaxRecordBytes.
  bool Push(uint64_t after, bool more, std::string_view body);
  // After Push: the receiver sleeps, ring its bell.
  bool BellDue();

 private:
  void Copy(uint64_t at, std::string_view bytes);
  bool HasRoom(uint64_t bytes);

  RingMemory* memory_ = nullptr;
  uint64_t head_ = 0;
  uint64_t tail_seen_ = 0;
};

class RingReceiver {
 public:
  enum class Got { kRecord, kNothing, kDamaged };

  RingReceiver() = default;
  explicit RingReceiver(RingMemory* memory) : memory_(memory) {}

  bool filled() const { return memory_->head.load(std::memory_order_relaxed) != tail_; }
  // The record in front, which stays there until Pop. kDamaged: the sender broke the rules.
  Got Peek(RingRecord& record) const;
  // Copies its body out and gives its room back. `body` has room for kMaxRecordBytes.
  void Pop(const RingRecord& record, std::span<std::byte> body);
  // After Pop: the sender waits for room, ring its bell.
  bool BellDue();

  // From now on the sender rings. False: there is something already.
  bool Arm();
  void Disarm();

 private:
  RingMemory* memory_ = nullptr;
  uint64_t tail_ = 0;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_RING_H_
