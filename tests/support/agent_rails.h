// The rails of an agent's connection to a peer, as it explains them.
#ifndef KVXFER_TESTS_SUPPORT_AGENT_RAILS_H_
#define KVXFER_TESTS_SUPPORT_AGENT_RAILS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "kvxfer/agent.h"

namespace kvxfer::testing {

// Of `backend` to `peer`; none where it does not reach the peer. The test fails where the agent
// does not know the peer.
std::vector<RailExplanation> Rails(const Agent& agent, std::string_view peer,
                                   std::string_view backend);
size_t RailsUp(const Agent& agent, std::string_view peer, std::string_view backend);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_AGENT_RAILS_H_
