// What is in flight on one queue pair: the op of each work request, and how many more requests fit.
//
// An op is one or more work requests, of which the last is signalled. If the requests of a queue
// pair end in order, the completion of an op covers every op before it. On an unordered queue pair
// an op is one request, and each ends by itself.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_SEND_QUEUE_H_
#define KVXFER_BACKENDS_VERBS_SEND_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "src/backends/verbs/ibv.h"

namespace kvxfer::verbs {

// The wr_id of a work request: the slot of its rail or control pair, a number, and a mark. Of a
// rail the number is the op's, and the mark says that the request is the last of its op; of a
// control pair the mark says that the request is a receive.
struct WorkId {
  uint16_t slot = 0;
  uint64_t number = 0;  // 47 bits
  bool last = false;

  uint64_t Encode() const {
    return (uint64_t{slot} << 48) | ((number << 1) & 0xffff'ffff'ffffu) | (last ? 1 : 0);
  }
  static WorkId Decode(uint64_t id) {
    return {.slot = static_cast<uint16_t>(id >> 48),
            .number = (id & 0xffff'ffff'ffffu) >> 1,
            .last = (id & 1) != 0};
  }
};

// Whose requests carry a slot.
class WorkOwner {
 public:
  virtual ~WorkOwner() = default;
  virtual void OnDone(const WorkId& id, const ibv_wc& wc) = 0;
};

enum class Purpose : uint8_t { kOp, kProbeWrite, kProbe, kFlush };

struct Flight {
  uint64_t number = 0;
  uint64_t op = 0;
  uint64_t transfer = 0;
  uint64_t remote = 0;  // where its first run begins
  uint32_t requests = 0;
  Purpose purpose = Purpose::kOp;
  uint64_t bytes = 0;
  bool read = false;
  bool into_gpu = false;  // a read into GPU memory, at least partly
  bool over = false;      // ended before an op that was posted earlier
};

class SendQueue {
 public:
  // Numbers continue from `first`, so that a late completion of an earlier life is recognised.
  void Reset(uint32_t depth, uint64_t first) {
    depth_ = depth;
    used_ = 0;
    next_ = first;
    flights_.clear();
    over_ = 0;
  }
  uint32_t space() const { return depth_ - used_; }
  bool empty() const { return flights_.empty(); }
  uint64_t next_number() const { return next_; }

  // Returns the number that its requests carry. Flight::requests must not exceed room().
  uint64_t Push(Flight flight) {
    flight.number = next_++;
    used_ += flight.requests;
    flights_.push_back(flight);
    return flight.number;
  }
  bool Has(uint64_t number) const {
    return !flights_.empty() && number >= flights_.front().number && number < next_ &&
           !At(number).over;
  }
  const Flight& front() const { return flights_.front(); }
  const Flight& back() const { return flights_.back(); }
  // `number` must be one for which Has is true.
  const Flight& At(uint64_t number) const { return flights_[number - flights_.front().number]; }
  // How many have not ended.
  size_t open() const { return flights_.size() - over_; }
  Flight Pop() {
    const Flight flight = flights_.front();
    used_ -= flight.requests;
    over_ -= flight.over ? 1 : 0;
    flights_.pop_front();
    return flight;
  }
  // Ends a flight for which Has is true. Its space is returned with that of the flights before it.
  Flight Take(uint64_t number) {
    Flight& flight = flights_[number - flights_.front().number];
    flight.over = true;
    ++over_;
    const Flight taken = flight;
    while (!flights_.empty() && flights_.front().over) Pop();
    return taken;
  }
  size_t CountOf(uint64_t transfer) const {
    size_t count = 0;
    for (const Flight& flight : flights_) {
      count += flight.purpose == Purpose::kOp && flight.transfer == transfer && !flight.over;
    }
    return count;
  }

 private:
  uint32_t depth_ = 0;
  uint32_t used_ = 0;
  uint64_t next_ = 1;
  size_t over_ = 0;
  std::deque<Flight> flights_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_SEND_QUEUE_H_
