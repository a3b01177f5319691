// All ranks of an instance as agents of this process, each with its part of one model's KV cache in
// memory of its own, and what a request's tokens look like there (kv_oracle.h).
#ifndef KVXFER_TESTS_SUPPORT_KV_NODES_H_
#define KVXFER_TESTS_SUPPORT_KV_NODES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "tests/support/agents.h"
#include "tests/support/flavour.h"
#include "tests/support/kv_oracle.h"

namespace kvxfer::testing {

// How an instance holds its cache.
struct KvShape {
  uint32_t tp = 1;
  uint32_t pp = 1;  // stages of equal length
  Form form = Form::kPacked;
  std::string order = "BHN";  // axes but for the innermost one
  uint32_t block_tokens = 16;
  uint32_t blocks = 8;
};

// Tokens of a request in the cache of an instance.
struct KvPlace {
  std::vector<uint32_t> ids{};
  uint64_t first_token = 0;
  uint64_t tokens = 0;
};

// One rank.
class KvNode {
 public:
  static absl::StatusOr<std::unique_ptr<KvNode>> Create(const Flavour& flavour,
                                                        const AgentOptions& options,
                                                        const KvModel& model, const KvShape& shape,
                                                        const KvShard& shard);
  ~KvNode();

  Agent& agent() { return *node_.agent; }
  const KvShard& shard() const { return cache_.shard; }
  // Writes what the request has there; `salt` tells one request from another.
  void Fill(const KvPlace& place, uint8_t salt);
  // The same, byte by byte and only where it is not there yet, while the agent may read what is.
  void Add(const KvPlace& place, uint8_t salt);
  // As Fill, while somebody may be reading: what they get of it is worth nothing, which is what a
  // test of leases is about, and no race to ThreadSanitizer.
  void Overwrite(const KvPlace& place, uint8_t salt);
  // Whether the memory holds that, of these layers of the model, and beside it nothing that Fill or
  // the memory's making has not put there. Remembers what it found.
  bool Holds(const KvPlace& place, uint8_t salt, uint32_t first_layer = 0,
             uint32_t layers = kAllLayers);
  // The cache must be deregistered before.
  absl::Status DeregisterMemory() { return node_.agent->DeregisterMemory(node_.region); }
  // Makes an end of the agent only, as if its process had died.
  void Kill() { node_.agent.reset(); }

 private:
  KvNode() = default;
  void Expect(const KvPlace& place, uint8_t salt, uint32_t first_layer, uint32_t end_layer);
  // Each with the bytes up to the next one.
  std::vector<std::span<std::byte>> Tensors();

  KvShape shape_;
  Cache cache_;  // as it should be
  Node node_;
};

// An instance. `names` are a group, as other instances have it.
struct KvNodes {
  using Change = absl::FunctionRef<void(AgentOptions&)>;
  static absl::StatusOr<KvNodes> Create(
      const Flavour& flavour, const std::string& name, const KvModel& model, const KvShape& shape,
      Change change = [](AgentOptions&) {});

  std::vector<std::string> names{};
  std::vector<std::unique_ptr<KvNode>> ranks{};
};

// A cache that is one tensor, from the beginning of its memory on: as large as a test likes.
struct KvSlab {
  KvModel model;
  KvShard shard;
  uint32_t blocks = 0;
  uint32_t block_tokens = 16;

  KvTensor Tensor() const;
  uint64_t bytes() const;
  // As "kv".
  absl::Status Register(Agent& agent, uint64_t address) const;
};

// Every rank of `a` learns of every rank of `b`.
absl::Status Introduce(KvNodes& a, KvNodes& b);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_KV_NODES_H_
