// Puts the frames of one direction of an endpoint in order. UCX's active messages may overtake each
// other if an endpoint has several lanes. A frame that comes early is copied and kept, within a
// bound.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_UCX_RESEQUENCER_H_
#define KVXFER_BACKENDS_UCX_RESEQUENCER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "src/backends/ucx/frames.h"

namespace kvxfer::ucx {

class Resequencer {
 public:
  // Limits of the early frames and of their bytes.
  struct Limits {
    size_t frames;
    size_t bytes;
  };
  // For a peer that has not proved who it is: what a handshake may have in flight, and more.
  static constexpr Limits kNarrow{.frames = 16, .bytes = kMaxFirstMessageBytes};
  // Many times what a sender has in flight.
  static constexpr Limits kWide{.frames = 512, .bytes = 8 * kDataWindow};

  struct Early {
    FrameHead head;
    std::string body;
  };
  enum class Place : uint8_t { kNext, kKept, kRefused };

  explicit Resequencer(Limits limits) : limits_(limits) {}
  // From now on the limits are kWide.
  void Widen() { limits_ = kWide; }

  // kNext: it is this frame's turn, and the caller uses it now. kKept: Take returns the frame when
  // its turn comes. kRefused: the frame's number came before, or too many frames are early; the
  // peer violates the protocol.
  Place Put(const FrameHead& head, std::span<const std::byte> body) {
    if (head.order == next_) {
      ++next_;
      return Place::kNext;
    }
    if (head.order < next_ || early_.size() >= limits_.frames ||
        early_bytes_ + body.size() > limits_.bytes) {
      return Place::kRefused;
    }
    const char* const text = reinterpret_cast<const char*>(body.data());
    const bool fresh = early_.try_emplace(head.order, Early{head, {text, body.size()}}).second;
    if (fresh) early_bytes_ += body.size();
    return fresh ? Place::kKept : Place::kRefused;
  }

  // The kept frame whose turn it is now, if it is there.
  std::optional<Early> Take() {
    const auto it = early_.find(next_);
    if (it == early_.end()) return std::nullopt;
    std::optional<Early> out(std::move(it->second));
    early_.erase(it);
    early_bytes_ -= out->body.size();
    ++next_;
    return out;
  }

  size_t early() const { return early_.size(); }
  // A frame has had its turn.
  bool begun() const { return next_ > 1; }

 private:
  Limits limits_;
  uint64_t next_ = 1;  // the number of the frame whose turn it is
  std::map<uint64_t, Early> early_;
  size_t early_bytes_ = 0;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_RESEQUENCER_H_
