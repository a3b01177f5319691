// What every table of a transfer's states has to satisfy.
#include "src/core/protocol/send_state.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace kvxfer {
namespace {

constexpr uint8_t kSendStates = static_cast<uint8_t>(SendState::kGone) + 1;

std::set<SendState> Following(SendState from) {
  std::set<SendState> states;
  for (uint8_t to = 0; to < kSendStates; ++to) {
    if (IsLegal(from, SendState{to})) states.insert(SendState{to});
  }
  return states;
}
bool Ends(SendState state) { return state >= SendState::kAborting; }

TEST(SendStates, ATransferThatEndsNeverGoesOn) {
  for (uint8_t from = 0; from < kSendStates; ++from) {
    if (!Ends(SendState{from})) continue;
    for (const SendState to : Following(SendState{from})) EXPECT_TRUE(Ends(to)) << int{from};
  }
  EXPECT_TRUE(Following(SendState::kGone).empty());
}

// Expect each state that is not over to be able to end otherwise than done: a deadline may pass
// anywhere.
TEST(SendStates, EveryTransferCanEnd) {
  for (uint8_t from = 0; from < kSendStates; ++from) {
    if (Ends(SendState{from})) continue;
    EXPECT_TRUE(IsLegal(SendState{from}, SendState::kAborting)) << int{from};
    EXPECT_TRUE(IsLegal(SendState{from}, SendState::kStopping)) << int{from};
  }
}

TEST(SendStates, FromEachTheLastCanBeReached) {
  for (uint8_t first = 0; first < kSendStates; ++first) {
    std::set<SendState> reached{SendState{first}};
    for (size_t before = 0; before != reached.size();) {
      before = reached.size();
      for (const SendState state : std::set<SendState>(reached)) reached.merge(Following(state));
    }
    EXPECT_TRUE(reached.contains(SendState::kGone)) << int{first};
  }
}

// Expect a transfer to be done only where all ops are over and the target knows all of it, or need
// not.
TEST(SendStates, DoneFromThreeStates) {
  std::set<SendState> done;
  for (uint8_t from = 0; from < kSendStates; ++from) {
    if (!Ends(SendState{from}) && IsLegal(SendState{from}, SendState::kGone)) {
      done.insert(SendState{from});
    }
  }
  EXPECT_EQ(done, (std::set<SendState>{SendState::kSent, SendState::kOpened, SendState::kArrived}));
}

}  // namespace
}  // namespace kvxfer
