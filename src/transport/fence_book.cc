#include "src/transport/fence_book.h"

#include <algorithm>

namespace kvxfer {

FenceBook::Fences::iterator FenceBook::Find(uint64_t transfer, bool& first) {
  const auto [it, made] = fences_.try_emplace(transfer);
  if (made) it->second.marks.resize(streams_.size());
  first = made;
  return it;
}

uint32_t FenceBook::Ask(uint64_t transfer) {
  bool first = false;
  const auto it = Find(transfer, first);
  if (it->second.asked++ == 0) ++asked_;
  return EndIfWhole(it);
}

uint32_t FenceBook::OnMarker(uint64_t transfer, uint32_t stream,
                             std::span<const uint32_t> through) {
  bool first = false;
  const auto it = Find(transfer, first);
  std::vector<Mark>& marks = it->second.marks;
  marks[stream].came = true;
  marks[stream].life = streams_[stream].life;
  // Several markers of a transfer may name lives; the highest value holds.
  for (size_t i = 0; i < through.size() && i < marks.size(); ++i) {
    marks[i].through = std::max(marks[i].through, through[i]);
  }
  if (it->second.asked > 0) return EndIfWhole(it);
  if (!first) return 0;
  // A marker that nobody asked for is remembered, within a bound. Without it the fence would wait
  // for ever for a marker that has already come.
  early_.push_back(transfer);
  if (early_.size() > kMaxEarly) {
    const auto oldest = fences_.find(early_.front());
    if (oldest != fences_.end() && oldest->second.asked == 0) fences_.erase(oldest);
    early_.pop_front();
  }
  return 0;
}

void FenceBook::Open(uint32_t stream, uint32_t life) {
  streams_[stream] = {.open = true, .life = life};
}

FenceBook::Due FenceBook::Close(uint32_t stream) {
  streams_[stream].open = false;
  Due due;
  // A stream that closed needs no marker, so fences that waited for it may be complete now.
  if (asked_ == 0) return due;
  for (auto it = fences_.begin(); it != fences_.end();) {
    const auto next = std::next(it);
    const uint64_t transfer = it->first;
    if (it->second.asked > 0) {
      if (const uint32_t answers = EndIfWhole(it)) due.emplace_back(transfer, answers);
    }
    it = next;
  }
  return due;
}

// Whether no byte of the transfer can be written any more, whatever is in flight.
bool FenceBook::Whole(const Fence& fence) const {
  for (size_t i = 0; i < streams_.size(); ++i) {
    const Stream& stream = streams_[i];
    const Mark& mark = fence.marks[i];
    const bool marked = mark.came && mark.life >= mark.through;
    // An open stream still owes its marker, unless its present life began too late to carry the
    // transfer.
    if (stream.open && stream.life <= mark.through && !marked) return false;
  }
  return true;
}

uint32_t FenceBook::EndIfWhole(Fences::iterator it) {
  if (!Whole(it->second)) return 0;
  const uint32_t answers = it->second.asked;
  fences_.erase(it);
  --asked_;
  return answers;
}

}  // namespace kvxfer
