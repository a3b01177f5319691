// Decides which ranks of another instance a worker exchanges KV ranges with, and which ranges.
//
// Specification, checked exhaustively over small instances: the ranges that all source workers
// share with one target rank cover each head of each layer of that rank exactly once.
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
#include "src/core/kv/kv_range.h"
#include "src/core/plan/block_list.h"

namespace kvxfer {

// One worker of the other instance; `peer` is the name of its agent.
struct KvRank {
  std::string_view peer{};
  const KvLayout* layout = nullptr;
};

// The KV range that moves between a worker and one rank.
struct KvShare {
  size_t rank = 0;  // index in the group
  KvRange range{};

  bool operator==(const KvShare&) const = default;
};

// InvalidArgument: `group` is not ranks of one instance of the model of `own`, each once, among
// them all that the worker exchanges blocks with. The message names the rank that is missing,
// doubled or of another model, and the field that differs.
absl::Status CheckKvGroup(const KvLayout& own, std::span<const KvRank> group, Direction direction);

// The KV ranges, within `asked`, that the worker with layout `own` sends to (kWrite) or takes from
// (kRead) the ranks of a group that has passed CheckKvGroup, in the order of the group. Empty:
// other workers exchange all that is needed.
std::vector<KvShare> KvShares(const KvLayout& own, std::span<const KvRank> group,
                              Direction direction, const KvRange& asked);

// InvalidArgument: `stages` are not those of an instance of which the worker with layout `own` is a
// rank. Empty: of an instance with one stage.
absl::Status CheckStages(const KvLayout& own, std::span<const uint32_t> stages);

// The number of ranks in the instance of `own`, which has these stages, that take data from
// `source`.
uint32_t KvReaders(const KvLayout& own, std::span<const uint32_t> stages, const KvLayout& source);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_GROUP_H_
