#include "tests/support/agent_rails.h"

#include <algorithm>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {

std::vector<RailExplanation> Rails(const Agent& agent, std::string_view peer,
                                   std::string_view backend) {
  const absl::StatusOr<Explanation> why = agent.Explain(peer);
  EXPECT_OK(why);
  if (!why.ok()) return {};
  const auto path = std::ranges::find(why->paths, backend, &PathExplanation::backend);
  return path == why->paths.end() ? std::vector<RailExplanation>{} : path->each_rail;
}

size_t RailsUp(const Agent& agent, std::string_view peer, std::string_view backend) {
  return static_cast<size_t>(
      std::ranges::count(Rails(agent, peer, backend), true, &RailExplanation::up));
}

}  // namespace kvxfer::testing
