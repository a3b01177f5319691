// Which ranks of two instances exchange which KV ranges. A group is checked as a whole first, so
// that a transfer cannot start towards half an instance.
#include "src/core/kv/kv_group.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "src/core/base/strings.h"
#include "src/core/kv/reshard.h"

namespace kvxfer {
namespace {

template <typename... Why>
absl::Status Refuse(const Why&... why) {
  return absl::InvalidArgumentError(absl::StrCat("KV peer group: ", why...));
}

std::string LayersText(uint32_t first, uint32_t end) {
  return absl::StrCat("layers ", first, " to ", end - 1);
}

uint32_t EndOf(const KvShard& shard) { return shard.first_layer + shard.layers; }

// `ranks` are those of one pipeline stage, sorted by tp_rank.
absl::Status CheckStage(std::span<const KvRank> ranks) {
  const KvShard& stage = ranks.front().layout->shard();
  const std::string layers = LayersText(stage.first_layer, EndOf(stage));
  const auto missing = [&](size_t rank) {
    return Refuse("rank ", rank, " of ", stage.tp_size, " with ", layers, " is missing");
  };
  for (size_t i = 0; i < ranks.size(); ++i) {
    const KvShard& shard = ranks[i].layout->shard();
    if (shard.layers != stage.layers) {
      return Refuse(ToAbsl(ranks[i].peer), " has ", LayersText(shard.first_layer, EndOf(shard)),
                    " and ", ToAbsl(ranks.front().peer), " ", layers);
    }
    if (i > 0 && shard.tp_rank == ranks[i - 1].layout->shard().tp_rank) {
      return Refuse(ToAbsl(ranks[i - 1].peer), " and ", ToAbsl(ranks[i].peer), " are both rank ",
                    shard.tp_rank, " of ", shard.tp_size, " with ", layers);
    }
    if (shard.tp_rank != i) return missing(i);
  }
  return ranks.size() == stage.tp_size ? absl::OkStatus() : missing(ranks.size());
}

// Whether `src` is the rank from which rank `dst_rank` of `dst_tp` takes its heads of `src`:
// several ranks may have them.
bool TakesFrom(const KvLayout& src, uint32_t dst_rank, uint32_t dst_tp) {
  const auto sources = SourcesOf(src.model(), src.shard().tp_size, dst_rank, dst_tp);
  // An error cannot happen with layouts of one model.
  return sources.ok() && std::ranges::any_of(*sources, [&](const KvSource& source) {
           return source.tp_rank == src.shard().tp_rank;
         });
}

}  // namespace

absl::Status CheckKvGroup(const KvLayout& own, std::span<const KvRank> group) {
  if (group.empty()) return Refuse("it is empty");
  const uint32_t tp_size = group.front().layout->shard().tp_size;
  for (const KvRank& rank : group) {
    absl::Status same = CheckSameModel(own.model(), rank.layout->model(), rank.peer);
    if (!same.ok()) return same;
    if (rank.layout->shard().tp_size == tp_size) continue;
    return Refuse(ToAbsl(group.front().peer), " has tp_size ", tp_size, " and ", ToAbsl(rank.peer),
                  " ", rank.layout->shard().tp_size);
  }
  std::vector<KvRank> sorted(group.begin(), group.end());
  // Sorted by stage and then by rank, the stages must cover the model's layers without gap or
  // overlap.
  std::ranges::stable_sort(sorted, {}, [](const KvRank& rank) {
    return std::tuple(rank.layout->shard().first_layer, rank.layout->shard().tp_rank);
  });
  uint32_t next = 0;  // all layers below belong to a stage that was checked
  for (size_t i = 0; i < sorted.size();) {
    const KvShard& stage = sorted[i].layout->shard();
    if (stage.first_layer > next) {
      return Refuse("no rank has ", LayersText(next, stage.first_layer));
    }
    if (stage.first_layer < next) {
      return Refuse(ToAbsl(sorted[i].peer), " has ", LayersText(stage.first_layer, EndOf(stage)),
                    ", of which ", ToAbsl(sorted[i - 1].peer), " has some");
    }
    size_t end = i;
    while (end < sorted.size() && sorted[end].layout->shard().first_layer == stage.first_layer) {
      ++end;
    }
    absl::Status status = CheckStage(std::span(sorted).subspan(i, end - i));
    if (!status.ok()) return status;
    next = EndOf(stage);
    i = end;
  }
  const uint32_t layers = own.model().layers;
  return next == layers ? absl::OkStatus() : Refuse("no rank has ", LayersText(next, layers));
}

std::vector<KvShare> KvShares(const KvLayout& own, std::span<const KvRank> group,
                              Direction direction, const KvRange& asked) {
  std::vector<KvShare> shares;
  for (size_t i = 0; i < group.size(); ++i) {
    const KvLayout& src = direction == Direction::kWrite ? own : *group[i].layout;
    const KvLayout& dst = direction == Direction::kWrite ? *group[i].layout : own;
    const KvRange range = Intersection(asked, Intersection(RangeOf(src), RangeOf(dst)));
    if (range.empty()) continue;
    if (TakesFrom(src, dst.shard().tp_rank, dst.shard().tp_size)) {
      shares.push_back({.rank = i, .range = range});
    }
  }
  return shares;
}

uint32_t KvReaders(const KvLayout& own, const KvLayout& source) {
  // Counts over tensor parallelism alone: the caller handles pipeline stages.
  const uint32_t tp_size = own.shard().tp_size;
  uint32_t readers = 0;
  for (uint32_t rank = 0; rank < tp_size; ++rank) readers += TakesFrom(source, rank, tp_size);
  return readers;
}

}  // namespace kvxfer
