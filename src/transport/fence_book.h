// The accepting side's record of fences: the transfers that must not be written any more, and the
// streams on which the marker that ends them was received. A marker may arrive before the agent
// asks. Pure.
//
// A stream may end and be opened again, which starts a new life with a higher number. A closed
// stream delivers nothing, so no marker is awaited on it, and a marker that was lost with it does
// no harm. Whether a later life can carry the transfer is stated by the marker on the stream that
// never ends (the control stream): for each other stream, it names the last life that may.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_FENCE_BOOK_H_
#define KVXFER_TRANSPORT_FENCE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kvxfer {

class FenceBook {
 public:
  // How many transfers with markers that nobody has asked for are remembered; beyond that the
  // oldest are dropped. More than the transfers of one session (kMaxSessionTransfers), because all
  // of them may end before the first ABORT arrives.
  static constexpr size_t kMaxEarly = 32768;

  // All streams start open, in life 0.
  explicit FenceBook(uint32_t streams) : streams_(streams) {}

  // Ask: the agent fences `transfer`. OnMarker: its marker was received on `stream`. Both return
  // how many kFenced answers are due for `transfer` now. `through`: for each stream, in order, the
  // last life in which `transfer` may have been sent before this marker.
  uint32_t Ask(uint64_t transfer);
  uint32_t OnMarker(uint64_t transfer, uint32_t stream, std::span<const uint32_t> through = {});

  // Starts a new life of a closed stream; `life` must be higher than its earlier lives.
  void Open(uint32_t stream, uint32_t life);
  // Nothing arrives on the stream any more. Returns the transfers, each with the number of answers
  // that are due now.
  using Due = std::vector<std::pair<uint64_t, uint32_t>>;
  Due Close(uint32_t stream);

  // True from Ask until its answer: no byte of `transfer` may be written.
  bool IsFenced(uint64_t transfer) const {
    if (asked_ == 0) return false;
    const auto it = fences_.find(transfer);
    return it != fences_.end() && it->second.asked > 0;
  }
  size_t remembered() const { return fences_.size(); }

 private:
  struct Stream {
    bool open = true;
    uint32_t life = 0;
  };
  // The marker of one transfer on one stream.
  struct Mark {
    bool came = false;
    uint32_t life = 0;     // the life in which it came
    uint32_t through = 0;  // the last life that may carry the transfer
  };
  struct Fence {
    std::vector<Mark> marks;
    uint32_t asked = 0;
  };
  using Fences = std::unordered_map<uint64_t, Fence>;

  Fences::iterator Find(uint64_t transfer, bool& first);
  bool Whole(const Fence& fence) const;
  uint32_t EndIfWhole(Fences::iterator it);

  std::vector<Stream> streams_;
  Fences fences_;
  std::deque<uint64_t> early_;  // by first marker; may contain transfers that have ended
  size_t asked_ = 0;            // fences that were asked for
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_FENCE_BOOK_H_
