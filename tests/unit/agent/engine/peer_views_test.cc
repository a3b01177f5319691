// What threads see of peers, and how many transfers are under way.
#include "src/agent/engine/peer_views.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

std::shared_ptr<const PeerView> View(const std::string& name, uint32_t queued) {
  return std::make_shared<const PeerView>(
      PeerView{.name = name, .queued = std::make_shared<std::atomic<uint32_t>>(queued)});
}

TEST(PeerViews, TheLatestOfAName) {
  PeerViews views;
  const auto first = View("a", 0);
  const auto second = View("a", 0);
  views.Publish(first);
  views.Publish(second);
  EXPECT_EQ(*views.Find("a"), second);
  views.Remove("a");
  EXPECT_TRUE(Fails(views.Find("a"), absl::StatusCode::kNotFound, {"a", "metadata"}));
  views.Remove("a");
}

TEST(PeerViews, CountsWhatHasNotEnded) {
  PeerViews views;
  EXPECT_EQ(views.CountQueued().transfers, 0u);
  views.Publish(View("a", 2));
  views.Publish(View("b", 0));
  views.Publish(View("c", 3));
  const PeerViews::Queued queued = views.CountQueued();
  EXPECT_EQ(queued.transfers, 5u);
  EXPECT_EQ(queued.peers, "a, c");
}

}  // namespace
}  // namespace kvxfer::testing
