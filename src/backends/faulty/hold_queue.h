// Items that are held back for a while and released in an order that the seed chooses.
//
// With a window, up to that many items are held, and any of those whose delay is over may be
// released. Without a window, each is released when its delay is over. With neither, items are
// released at once, first in, first out. A Release at or after next_due() releases at least one
// item.
//
// Thread-safety: none.

#ifndef KVXFER_BACKENDS_FAULTY_HOLD_QUEUE_H_
#define KVXFER_BACKENDS_FAULTY_HOLD_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "src/backends/faulty/options.h"
#include "src/backends/faulty/random.h"
#include "src/core/base/clock.h"

namespace kvxfer::faulty {

template <typename T>
class HoldQueue {
 public:
  // `random` is borrowed.
  HoldQueue(const FaultOptions& options, Random* random)
      : window_(options.reorder_window), max_delay_(options.max_delay), random_(random) {}

  void Add(T item, Time now) {
    Duration delay{};
    if (max_delay_ > Duration::zero()) {
      delay = Duration(random_->Below(static_cast<uint64_t>(max_delay_.count()) + 1));
    }
    held_.push_back({now + delay, std::move(item)});
  }

  // Appends to `out` what may be released now.
  void Release(Time now, std::vector<T>& out) {
    if (window_ == 0) return ReleaseDue(now, out);
    while (held_.size() > window_) Take(random_->Below(held_.size()), out);
    const size_t before = out.size();
    for (size_t i = held_.size(); i > 0; --i) {
      if (held_[i - 1].due <= now && random_->Chance(0.5)) Take(i - 1, out);
    }
    // Chance released nothing: release one item, so that there is progress.
    if (out.size() > before || held_.empty()) return;
    const size_t start = random_->Below(held_.size());
    for (size_t i = 0; i < held_.size(); ++i) {
      const size_t index = (start + i) % held_.size();
      if (held_[index].due <= now) return Take(index, out);
    }
  }

  void ReleaseAll(std::vector<T>& out) {
    for (Held& held : held_) out.push_back(std::move(held.item));
    held_.clear();
  }

  // Appends to `out` the items that `match`, and removes them.
  template <typename Match>
  void Extract(Match match, std::vector<T>& out) {
    std::erase_if(held_, [&](Held& held) {
      if (!match(std::as_const(held.item))) return false;
      out.push_back(std::move(held.item));
      return true;
    });
  }

  template <typename Match>
  bool Contains(Match match) const {
    return std::any_of(held_.begin(), held_.end(), [&](const Held& h) { return match(h.item); });
  }

  bool empty() const { return held_.empty(); }
  size_t size() const { return held_.size(); }

  // When the first item may be released. Call it only if not empty.
  Time next_due() const { return std::min_element(held_.begin(), held_.end(), Earlier)->due; }

 private:
  struct Held {
    Time due;
    T item;
  };

  static bool Earlier(const Held& a, const Held& b) { return a.due < b.due; }

  // Without a window only time limits how many items are held; this limits their number too.
  static constexpr size_t kMaxHeld = 4096;

  void Take(size_t index, std::vector<T>& out) {
    out.push_back(std::move(held_[index].item));
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void ReleaseDue(Time now, std::vector<T>& out) {
    std::stable_sort(held_.begin(), held_.end(), Earlier);
    size_t count = 0;
    while (count < held_.size() && (held_[count].due <= now || held_.size() - count > kMaxHeld)) {
      out.push_back(std::move(held_[count].item));
      ++count;
    }
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  const size_t window_;
  const Duration max_delay_;
  Random* const random_;
  std::vector<Held> held_;
};

}  // namespace kvxfer::faulty

#endif  // KVXFER_BACKENDS_FAULTY_HOLD_QUEUE_H_
