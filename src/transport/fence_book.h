// The accepting side's book of fences: which transfers must not land, and on which streams the
// marker that ends them has come in. A marker may come before the agent asks. Pure.
//
// A stream may end and be made anew, which begins a higher life of it. Nothing lands from one that
// is closed, so no marker is waited for there, and none can get lost with it. Whether a later life
// can carry a transfer is told by the marker of a stream that never ends (the control stream): it
// names, for each of the others, the last life that may.
//
// Thread-safety: none; used by the backend's owner.

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
  // Markers of so many transfers that nobody has asked for are remembered; then the oldest go. More
  // than the transfers of one session (kMaxSessionTransfers): all may end before the first ABORT.
  static constexpr size_t kMaxEarly = 32768;

  // All streams are open, in life 0.
  explicit FenceBook(uint32_t streams) : streams_(streams) {}

  // Both return how many kFenced answers are due for `transfer` now. `through`: for each of the
  // first streams the last life in which `transfer` may have been sent before this marker.
  uint32_t Ask(uint64_t transfer);
  uint32_t OnMarker(uint64_t transfer, uint32_t stream, std::span<const uint32_t> through = {});

  // A new life of a stream that is closed; higher than those before.
  void Open(uint32_t stream, uint32_t life);
  // Nothing lands from the stream any more. Transfers, and the answers that are due for each now.
  using Due = std::vector<std::pair<uint64_t, uint32_t>>;
  Due Close(uint32_t stream);

  // From Ask until its answer: no byte of `transfer` may land.
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
  // Of one transfer, on one stream.
  struct Mark {
    bool came = false;
    uint32_t life = 0;     // in which it came
    uint32_t through = 0;  // the last one that may carry it
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
  std::deque<uint64_t> early_;  // in order of their first marker; may name what has ended
  size_t asked_ = 0;            // fences in the book that were asked for
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_FENCE_BOOK_H_
