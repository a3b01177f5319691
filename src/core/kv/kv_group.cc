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
                              Direction direction, uint32_t first_layer, uint32_t layers) {
  std::vector<KvShare> shares;
  for (size_t i = 0; i < group.size(); ++i) {
    const KvLayout& src = direction == Direction::kWrite ? own : *group[i].layout;
    const KvLayout& dst = direction == Direction::kWrite ? *group[i].layout : own;
    // The layers that were asked for, that the source has, and that the target has.
    const uint32_t first =
        std::max({first_layer, src.shard().first_layer, dst.shard().first_layer});
    const uint32_t end = std::min({first_layer + std::min(layers, own.model().layers),
                                   EndOf(src.shard()), EndOf(dst.shard())});
    if (first >= end) continue;
    const auto sources =
        SourcesOf(own.model(), src.shard().tp_size, dst.shard().tp_rank, dst.shard().tp_size);
    if (!sources.ok()) continue;  // cannot happen with layouts of one model
    // SourcesOf names each head's source rank exactly once, so each pair of ranks gets at most one
    // range.
    for (const KvSource& source : *sources) {
      if (source.tp_rank != src.shard().tp_rank) continue;
      shares.push_back(
          {.rank = i, .heads = source.heads, .first_layer = first, .layers = end - first});
    }
  }
  return shares;
}

uint32_t KvReaders(const KvLayout& own, const KvLayout& source) {
  // Counts over tensor parallelism alone: the caller handles pipeline stages.
  const KvShard& shard = own.shard();
  uint32_t readers = 0;
  for (uint32_t rank = 0; rank < shard.tp_size; ++rank) {
    const auto sources = SourcesOf(own.model(), source.shard().tp_size, rank, shard.tp_size);
    if (!sources.ok()) continue;  // cannot happen with layouts of one model
    const auto takes = [&](const KvSource& one) { return one.tp_rank == source.shard().tp_rank; };
    if (std::ranges::any_of(*sources, takes)) ++readers;
  }
  return readers;
}

}  // namespace kvxfer
