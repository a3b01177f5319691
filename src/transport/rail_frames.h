// Control frames about rails that backends with offered ends have in common, and their encoding
// (src/core/protocol/codec.h).
//
// A rail's life is a number that rises with each of its offers; frames about an earlier life than
// the present one are stale, and ignored.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_TRANSPORT_RAIL_FRAMES_H_
#define KVXFER_TRANSPORT_RAIL_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "src/core/base/text.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::net {

// The most bytes of a text in such a frame. Longer ones are cut.
inline constexpr size_t kMaxText = 512;

// The sender's end of that rail is closed or in error.
struct RailLost {
  uint8_t rail = 0;
  uint32_t life = 0;
  std::string why{};
};
// Nothing of that transfer is in flight any longer.
struct Quiet {
  uint64_t transfer = 0;
};

inline RailLost LostRail(uint32_t rail, uint32_t life, std::string_view why) {
  return {.rail = static_cast<uint8_t>(rail), .life = life, .why = ForPeer(why)};
}

// What every frame about a rail begins with.
template <typename Io, typename Frame>
void RailAndLife(Io& io, Frame& frame) {
  io.Int("rail", frame.rail);
  io.Int("life", frame.life);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, RailLost> frame) {
  RailAndLife(io, frame);
  io.Words("why", frame.why, kMaxText);
}
template <typename Io>
void Fields(Io& io, wire::Ref<Io, Quiet> frame) {
  io.Int("transfer", frame.transfer);
}

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_RAIL_FRAMES_H_
