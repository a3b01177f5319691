// Which ranks of another instance a worker exchanges parts of its KV cache with, and which parts.
//
// Specification, held by tests that are exhaustive over small instances: over all workers of the
// sources, what they share with a rank of the target is each head and layer of it once.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_GROUP_H_
#define KVXFER_CORE_KV_KV_GROUP_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/core/plan/block_list.h"

namespace kvxfer {

// One worker of the other instance, by the name of its agent.
struct KvRank {
  std::string_view peer{};
  const KvLayout* layout = nullptr;
};

// What goes between a worker and one rank.
struct KvShare {
  size_t rank = 0;  // index in the group
  KvHeads heads{};
  uint32_t first_layer = 0;  // of the model
  uint32_t layers = 0;

  bool operator==(const KvShare&) const = default;
};

// InvalidArgument: `group` is not every rank of one instance of the model of `own`, each once; says
// which rank is missing, there twice or of another model, by the field that differs, and whose it
// is.
absl::Status CheckKvGroup(const KvLayout& own, std::span<const KvRank> group);

// Of those layers of the model, what the worker with `own` gives to the ranks of a group that
// passed CheckKvGroup (kWrite), or takes from them (kRead); in the order of the group. None: other
// workers have all that the group needs.
std::vector<KvShare> KvShares(const KvLayout& own, std::span<const KvRank> group,
                              Direction direction, uint32_t first_layer, uint32_t layers);

// How many ranks of the instance of `own`, were it without pipeline parallelism, take something
// from `source`.
uint32_t KvReaders(const KvLayout& own, const KvLayout& source);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_GROUP_H_
