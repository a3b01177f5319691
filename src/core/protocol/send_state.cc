#include "src/core/protocol/send_state.h"

#include <array>
#include <cstddef>

namespace kvxfer {
namespace {

constexpr size_t kStates = static_cast<size_t>(SendState::kGone) + 1;

constexpr uint32_t Bit(SendState state) { return 1u << static_cast<uint32_t>(state); }

template <typename... States>
constexpr uint32_t Bits(States... states) {
  return (Bit(states) | ... | 0u);
}

// By the state that is left: those that may follow. The header has the same as a table to read.
constexpr std::array<uint32_t, kStates> kLegal = [] {
  using enum SendState;
  const uint32_t ends = Bits(kAborting, kStopping);
  std::array<uint32_t, kStates> legal{};
  const auto allow = [&legal](SendState from, uint32_t to) {
    legal[static_cast<size_t>(from)] = to;
  };
  allow(kLeasing, Bits(kSending, kSent) | ends);
  allow(kSending, Bits(kSent) | ends);
  allow(kSent, Bits(kSending, kConfirming, kOpened, kGone) | ends);
  allow(kConfirming, Bits(kSent) | ends);
  allow(kOpened, Bits(kAmending, kArrived, kGone) | ends);
  allow(kAmending, Bits(kOpened) | ends);
  allow(kArrived, Bits(kGone) | ends);
  allow(kAborting, Bits(kStopping, kOrphaned, kUnanswered));
  allow(kStopping, Bits(kMoving, kGone));
  allow(kOrphaned, Bits(kStopping, kMoving, kGone));
  allow(kUnanswered, Bits(kMoving, kGone));
  allow(kMoving, Bits(kGone));
  return legal;
}();

}  // namespace

bool IsLegal(SendState from, SendState to) {
  return (kLegal[static_cast<size_t>(from)] & Bit(to)) != 0;
}

}  // namespace kvxfer
