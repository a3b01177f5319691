#include "tests/support/agents.h"

#include <span>
#include <utility>

#include "src/agent/engine/agent_factory.h"
#include "tests/support/scale.h"
#include "tests/support/test_backends.h"

namespace kvxfer::testing {

TransferOptions Unhurried(NotifyOrder order) {
  TransferOptions options;
  options.order = order;
  options.deadline = kAmple;
  return options;
}

TransferOptions Telling(std::string payload, NotifyOrder order) {
  TransferOptions options = Unhurried(order);
  options.notification = std::move(payload);
  return options;
}

absl::StatusOr<Node> Node::Create(const AgentOptions& options, MemoryType type, size_t bytes,
                                  Access access) {
  Node node;
  absl::StatusOr<TestMemory> memory = TestMemory::Allocate(type, bytes);
  if (!memory.ok()) return memory.status();
  node.memory = *std::move(memory);
  absl::StatusOr<std::unique_ptr<Agent>> agent =
      internal::AgentFactory::Create(options, MakeTestBackend);
  if (!agent.ok()) return agent.status();
  node.agent = *std::move(agent);
  absl::StatusOr<RegionId> region = node.agent->RegisterMemory(node.memory.span(), access);
  if (!region.ok()) return region.status();
  node.region = *region;
  return node;
}

absl::StatusOr<std::string> Introduce(Agent& agent, const Agent& other) {
  absl::StatusOr<std::string> metadata = other.Metadata();
  if (!metadata.ok()) return metadata.status();
  return agent.AddPeer(*metadata);
}

absl::StatusOr<Transfer> WriteAcross(const Node& from, const Node& to, const std::string& word) {
  const size_t half = from.memory.bytes().size() / 2;
  const Descriptor local{from.memory.address(), half};
  const Descriptor remote{to.memory.address() + half, half};
  return from.agent->Write(
      to.name(), DescriptorBlocks{.local = std::span(&local, 1), .remote = std::span(&remote, 1)},
      Telling(word));
}

absl::StatusOr<Pair> Pair::Create(const Flavour& flavour, size_t bytes) {
  return Create(flavour, OptionsFor(flavour, "a"), OptionsFor(flavour, "b"), bytes);
}

absl::StatusOr<Pair> Pair::Create(const Flavour& flavour, const AgentOptions& a,
                                  const AgentOptions& b, size_t bytes) {
  absl::StatusOr<Node> first = Node::Create(a, flavour.memory, bytes);
  if (!first.ok()) return first.status();
  absl::StatusOr<Node> second = Node::Create(b, flavour.memory, bytes);
  if (!second.ok()) return second.status();
  if (auto known = Introduce(*first->agent, *second->agent); !known.ok()) return known.status();
  if (auto known = Introduce(*second->agent, *first->agent); !known.ok()) return known.status();
  return Pair{.a = *std::move(first), .b = *std::move(second)};
}

}  // namespace kvxfer::testing
