// One direction of messages between two processes: a ring of records in memory that both have
// mapped, with one sender and one receiver, and two flags by which each side says that it sleeps.
//
// The ring itself makes no system call. A sleeping side is woken by its bell, an eventfd, which the
// other side rings if BellDue says so. The other process can write anything into the ring, so
// lengths are checked, and a record is copied out before it is parsed.
//
// Thread-safety: none within one process. Between the two processes no lock is needed.

#ifndef KVXFER_TRANSPORT_HOST_MESSAGE_RING_H_
#define KVXFER_TRANSPORT_HOST_MESSAGE_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace kvxfer {

// What both sides poll. Each word has its own cache line, because one side writes it while the
// other polls it.
struct RingWords {
  alignas(64) std::atomic<uint64_t> head{0};  // bytes ever written; stored by the sender
  alignas(64) std::atomic<uint64_t> tail{0};  // bytes ever read; stored by the receiver
  // Set by the receiver, cleared by the sender.
  alignas(64) std::atomic<uint32_t> receiver_sleeps{0};
  // For space; set by the sender, cleared by the receiver.
  alignas(64) std::atomic<uint32_t> sender_waits{0};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// The header of a message or of a part of one.
struct RingRecord {
  enum class Kind : uint32_t {
    kLast,   // a message ends with it
    kMore,   // another part of the message follows
    kMoved,  // no body; all later records are in another ring (growing_ring.h)
  };
  uint32_t bytes = 0;
  Kind kind = Kind::kLast;
  uint64_t after = 0;  // how many frames of the socket precede it
};

// Where a ring is.
struct Ring {
  RingWords* words = nullptr;
  std::byte* data = nullptr;
  uint64_t bytes = 0;  // of data; a power of two

  // The most bytes of one record. Four of the largest records fit, so that sender and receiver can
  // work in parallel.
  static constexpr size_t MaxRecordBytes(uint64_t bytes) { return bytes / 4 - sizeof(RingRecord); }
};

// The memory of a ring, which both processes map. All zero is an empty ring.
template <uint64_t Bytes>
struct RingMemory {
  static constexpr uint64_t kBytes = Bytes;
  static constexpr size_t kMaxRecordBytes = Ring::MaxRecordBytes(Bytes);
  static_assert((Bytes & (Bytes - 1)) == 0);

  Ring ring() { return {.words = &words, .data = data, .bytes = Bytes}; }

  RingWords words;
  alignas(64) std::byte data[Bytes];
};

class RingSender {
 public:
  RingSender() = default;
  explicit RingSender(const Ring& ring) : ring_(ring) {}

  // False: no space; the receiver rings once there is some. `body` has at most MaxRecordBytes.
  bool Push(uint64_t after, RingRecord::Kind kind, std::string_view body);
  // Call it after Push. True: the receiver sleeps, so ring its bell.
  bool BellDue();

 private:
  void Copy(uint64_t at, std::string_view bytes);
  bool HasSpace(uint64_t bytes);

  Ring ring_;
  uint64_t head_ = 0;
  uint64_t tail_seen_ = 0;
};

class RingReceiver {
 public:
  enum class Got { kRecord, kNothing, kDamaged };

  RingReceiver() = default;
  explicit RingReceiver(const Ring& ring) : ring_(ring) {}

  bool filled() const { return ring_.words->head.load(std::memory_order_relaxed) != tail_; }
  // The record at the front, which stays there until Pop. kDamaged: the sender broke the rules.
  Got Peek(RingRecord& record) const;
  // Copies the record's body out and frees its space. `body` must have space for MaxRecordBytes.
  void Pop(const RingRecord& record, std::span<std::byte> body);
  // Call it after Pop. True: the sender waits for space, so ring its bell.
  bool BellDue();

  // From now on the sender rings the bell. False: the ring already holds something.
  bool Arm();
  void Disarm();

 private:
  Ring ring_;
  uint64_t tail_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_MESSAGE_RING_H_
