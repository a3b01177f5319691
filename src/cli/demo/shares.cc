#include "src/cli/demo/shares.h"

#include <map>

#include "src/core/kv/reshard.h"

namespace kvxfer::cli {
namespace {

absl::StatusOr<KvLayout> LayoutOf(const DemoShard& shard) {
  const absl::StatusOr<KvCacheShape> shape = CacheShapeOf(shard);
  if (!shape.ok()) return shape.status();
  return LayoutOf(shard, *shape);
}

// The copies between two blocks are the same in every layer.
void AddRuns(const Reshard& reshard, const DemoShard& from, const DemoShard& to, DemoShare& share) {
  std::map<uint64_t, uint64_t> runs;  // number of runs by length
  KvPieces pieces(static_cast<uint32_t>(from.config.block_tokens), 0,
                  static_cast<uint32_t>(to.config.block_tokens), 0, from.config.tokens);
  std::vector<StridedCopy> copies;
  while (!pieces.done()) {
    copies.clear();
    reshard.Copies(0, 1, pieces.Next(), copies);
    for (const StridedCopy& copy : copies) runs[copy.bytes] += copy.runs();
  }
  uint64_t most = 0;
  for (const auto& [bytes, count] : runs) {
    share.runs += count * from.config.model.layers;
    if (count * bytes < most) continue;
    most = count * bytes;
    share.run_bytes = bytes;
  }
}

}  // namespace

absl::StatusOr<std::vector<DemoShare>> SharesOf(std::span<const DemoShard> prefill,
                                                std::span<const DemoShard> decode) {
  std::vector<DemoShare> shares;
  for (const DemoShard& to : decode) {
    const absl::StatusOr<KvLayout> theirs = LayoutOf(to);
    if (!theirs.ok()) return theirs.status();
    const auto sources = SourcesOf(theirs->model(), static_cast<uint32_t>(prefill.size()), to.rank,
                                   static_cast<uint32_t>(decode.size()));
    if (!sources.ok()) return sources.status();
    for (const KvSource& source : *sources) {
      const DemoShard& from = prefill[source.tp_rank];
      const absl::StatusOr<KvLayout> ours = LayoutOf(from);
      if (!ours.ok()) return ours.status();
      const absl::StatusOr<Reshard> reshard = Reshard::Between(*ours, *theirs, source.heads);
      if (!reshard.ok()) return reshard.status();
      DemoShare share{.prefill = from.rank, .decode = to.rank, .heads = source.heads};
      AddRuns(*reshard, from, to, share);
      shares.push_back(share);
    }
  }
  return shares;
}

}  // namespace kvxfer::cli
