// Which ranks of two instances exchange which KV ranges. A group is checked first: a transfer does
// not start if one of the ranks that it concerns is missing.
#include "src/core/kv/kv_group.h"

#include <algorithm>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_join.h"
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

// Whether rank `dst_rank` of `dst_tp` takes heads from rank `src_rank` of `src_tp`. Several ranks
// may have the same heads.
bool TakesFrom(const KvModel& model, uint32_t src_rank, uint32_t src_tp, uint32_t dst_rank,
               uint32_t dst_tp) {
  const auto sources = SourcesOf(model, src_tp, dst_rank, dst_tp);
  // An error cannot happen with layouts of one model.
  return sources.ok() && std::ranges::any_of(*sources, [&](const KvSource& source) {
           return source.tp_rank == src_rank;
         });
}

bool TakesFrom(const KvLayout& src, uint32_t dst_rank, uint32_t dst_tp) {
  return TakesFrom(src.model(), src.shard().tp_rank, src.shard().tp_size, dst_rank, dst_tp);
}

// Whether the worker with shard `own` exchanges heads with rank `other` of `tp_size`.
bool Exchanges(const KvModel& model, const KvShard& own, uint32_t other, uint32_t tp_size,
               Direction direction) {
  return direction == Direction::kRead ? TakesFrom(model, other, tp_size, own.tp_rank, own.tp_size)
                                       : TakesFrom(model, own.tp_rank, own.tp_size, other, tp_size);
}

// How many ranks of `dst_tp` take heads from rank `src_rank` of `src_tp`.
uint32_t TpReaders(const KvModel& model, uint32_t dst_tp, uint32_t src_rank, uint32_t src_tp) {
  uint32_t readers = 0;
  for (uint32_t rank = 0; rank < dst_tp; ++rank) {
    readers += TakesFrom(model, src_rank, src_tp, rank, dst_tp);
  }
  return readers;
}

// No two ranks are the same one, and the stages do not overlap. `sorted`: by stage, then by rank.
absl::Status CheckDistinct(std::span<const KvRank> sorted) {
  for (size_t i = 1; i < sorted.size(); ++i) {
    const KvShard& before = sorted[i - 1].layout->shard();
    const KvShard& shard = sorted[i].layout->shard();
    const auto peer = ToAbsl(sorted[i].peer);
    const auto peer_before = ToAbsl(sorted[i - 1].peer);
    const std::string layers = LayersText(shard.first_layer, EndOf(shard));
    if (shard.first_layer != before.first_layer) {
      if (shard.first_layer >= EndOf(before)) continue;
      return Refuse(peer, " has ", layers, ", of which ", peer_before, " has some");
    }
    if (shard.layers != before.layers) {
      return Refuse(peer, " has ", layers, " and ", peer_before, " ",
                    LayersText(before.first_layer, EndOf(before)));
    }
    if (shard.tp_rank == before.tp_rank) {
      return Refuse(peer_before, " and ", peer, " are both rank ", shard.tp_rank, " of ",
                    shard.tp_size, " with ", layers);
    }
  }
  return absl::OkStatus();
}

// All stages of that rank that have layers of `own` are there. `sorted`: as above.
absl::Status CheckLayersOf(uint32_t tp_rank, const KvShard& own, std::span<const KvRank> sorted) {
  uint32_t next = own.first_layer;  // all of its layers below are there
  const auto missing = [&](uint32_t end) {
    return Refuse("rank ", tp_rank, " of ", sorted.front().layout->shard().tp_size, " with ",
                  LayersText(next, end), " is missing");
  };
  for (const KvRank& rank : sorted) {
    const KvShard& shard = rank.layout->shard();
    if (shard.tp_rank != tp_rank || EndOf(shard) <= next || shard.first_layer >= EndOf(own)) {
      continue;
    }
    if (shard.first_layer > next) return missing(shard.first_layer);
    next = EndOf(shard);
  }
  return next >= EndOf(own) ? absl::OkStatus() : missing(EndOf(own));
}

}  // namespace

absl::Status CheckKvGroup(const KvLayout& own, std::span<const KvRank> group, Direction direction) {
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
  std::ranges::stable_sort(sorted, {}, [](const KvRank& rank) {
    return std::tuple(rank.layout->shard().first_layer, rank.layout->shard().tp_rank);
  });
  if (auto status = CheckDistinct(sorted); !status.ok()) return status;
  for (uint32_t rank = 0; rank < tp_size; ++rank) {
    if (!Exchanges(own.model(), own.shard(), rank, tp_size, direction)) continue;
    if (auto status = CheckLayersOf(rank, own.shard(), sorted); !status.ok()) return status;
  }
  return absl::OkStatus();
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

namespace {

// The layers of stage `stage`, of those that begin at `stages`.
KvRange LayersOfStage(const KvModel& model, std::span<const uint32_t> stages, size_t stage) {
  const uint32_t end = stage + 1 < stages.size() ? stages[stage + 1] : model.layers;
  return {
      .heads = {.count = model.heads}, .first_layer = stages[stage], .layers = end - stages[stage]};
}

absl::Status CheckStages(const KvModel& model, std::span<const uint32_t> stages) {
  const bool ascend =
      std::ranges::adjacent_find(stages, std::ranges::greater_equal()) == stages.end();
  if (!stages.empty() && stages.front() == 0 && ascend && stages.back() < model.layers) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV stages: their first layers must ascend from 0 on, below the model's ",
                   model.layers, ", and are {", absl::StrJoin(stages, ", "), "}"));
}

absl::StatusOr<std::vector<uint32_t>> RanksOf(const KvModel& model, const KvShard& own,
                                              const KvDivision& other, Direction direction) {
  if (auto status = CheckStages(model, other.stages); !status.ok()) return status;
  for (const auto& [rank, size] : {std::pair(own.tp_rank, own.tp_size), {0u, other.tp_size}}) {
    if (auto status = HeadsOf(model, rank, size).status(); !status.ok()) return status;
  }
  const KvRange layers = {
      .heads = {.count = model.heads}, .first_layer = own.first_layer, .layers = own.layers};
  // The first rank of the first stage speaks for the instance.
  const bool speaks = direction == Direction::kRead && own.tp_rank == 0 && own.first_layer == 0;
  std::vector<uint32_t> found;
  for (uint32_t stage = 0; stage < other.stages.size(); ++stage) {
    const bool shared = !Intersection(layers, LayersOfStage(model, other.stages, stage)).empty();
    for (uint32_t rank = 0; rank < other.tp_size; ++rank) {
      const bool exchanges = shared && Exchanges(model, own, rank, other.tp_size, direction);
      const bool unread = speaks && TpReaders(model, own.tp_size, rank, other.tp_size) == 0;
      if (exchanges || unread) found.push_back(stage * other.tp_size + rank);
    }
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<uint32_t>> RanksToRead(const KvModel& model, const KvShard& own,
                                                  const KvDivision& from) {
  return RanksOf(model, own, from, Direction::kRead);
}

absl::StatusOr<std::vector<uint32_t>> RanksToWrite(const KvModel& model, const KvShard& own,
                                                   const KvDivision& to) {
  return RanksOf(model, own, to, Direction::kWrite);
}

absl::Status CheckStages(const KvLayout& own, std::span<const uint32_t> stages) {
  const uint32_t whole[] = {0};
  if (stages.empty()) stages = whole;
  if (auto status = CheckStages(own.model(), stages); !status.ok()) return status;
  const KvShard& shard = own.shard();
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const KvRange layers = LayersOfStage(own.model(), stages, stage);
    if (layers.first_layer == shard.first_layer && layers.layers == shard.layers) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV stages: this worker has ", LayersText(shard.first_layer, EndOf(shard)),
                   ", and no stage of {", absl::StrJoin(stages, ", "), "} of ", own.model().layers,
                   " layers does: say in KvOptions::stages where those of its instance begin"));
}

uint32_t KvReaders(const KvLayout& own, std::span<const uint32_t> stages, const KvLayout& source) {
  uint32_t overlapping = stages.empty() ? 1 : 0;
  for (size_t stage = 0; stage < stages.size(); ++stage) {
    const KvRange layers = LayersOfStage(own.model(), stages, stage);
    overlapping += !Intersection(layers, RangeOf(source)).empty();
  }
  const KvShard& theirs = source.shard();
  return overlapping * TpReaders(own.model(), own.shard().tp_size, theirs.tp_rank, theirs.tp_size);
}

}  // namespace kvxfer
