// Agents in this process with one registered memory each.
#ifndef KVXFER_TESTS_SUPPORT_AGENTS_H_
#define KVXFER_TESTS_SUPPORT_AGENTS_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "tests/support/flavour.h"
#include "tests/support/test_memory.h"

namespace kvxfer::testing {

// An agent and its one registered memory. The agent goes first.
struct Node {
  TestMemory memory;
  RegionId region = RegionId::kNone;
  std::unique_ptr<Agent> agent;

  static absl::StatusOr<Node> Create(const AgentOptions& options, MemoryType type, size_t bytes,
                                     Access access = Access::kReadWrite);
  const std::string& name() const { return agent->name(); }
};

// Options of a transfer with time enough, and with a notification.
TransferOptions Unhurried(NotifyOrder order = NotifyOrder::kPosted);
TransferOptions Telling(std::string payload, NotifyOrder order = NotifyOrder::kPosted);

// `agent` learns of `other`; its name.
absl::StatusOr<std::string> Introduce(Agent& agent, const Agent& other);

// Writes the first half of the memory of `from` to the second half of that of `to`, with the
// notification `word`. So two nodes may write to each other at once.
absl::StatusOr<Transfer> WriteAcross(const Node& from, const Node& to, const std::string& word);

// Two agents that know each other: `a` and `b`.
struct Pair {
  Node a;
  Node b;

  static absl::StatusOr<Pair> Create(const Flavour& flavour, size_t bytes);
  static absl::StatusOr<Pair> Create(const Flavour& flavour, const AgentOptions& a,
                                     const AgentOptions& b, size_t bytes);
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_AGENTS_H_
