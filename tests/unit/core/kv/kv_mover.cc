#include "tests/unit/core/kv/kv_mover.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <utility>

#include "kvxfer/backend.h"
#include "src/core/kv/kv_tensors.h"
#include "src/core/kv/reshard.h"
#include "src/core/plan/plan.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr uint8_t kUntouched = 0xa5;

std::vector<uint32_t> Shuffled(uint32_t count, std::mt19937_64& random) {
  std::vector<uint32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::shuffle(ids, random);
  return ids;
}

// What a backend would call the regions: places in arrays, so that they can be told again.
class Holds {
 public:
  Holds(const RegionTable& local, const RegionTable& remote) : local_(local), remote_(remote) {
    for (size_t i = 0; i < local_.regions().size(); ++i) here_.push_back(&registrations_[i]);
    for (size_t i = 0; i < remote_.regions().size(); ++i) there_.push_back(&keys_[i]);
  }
  BlockView ViewOf(const BlockList& list) const { return list.View(here_, there_); }
  const RegionView& LocalOf(const Run& run) const {
    return local_.regions()[static_cast<size_t>(run.registration - registrations_.data())];
  }
  const RegionView& RemoteOf(const Run& run) const {
    return remote_.regions()[static_cast<size_t>(run.key - keys_.data())];
  }

 private:
  const RegionTable& local_;
  const RegionTable& remote_;
  std::array<Registration, 16> registrations_;
  std::array<RemoteKey, 16> keys_;
  std::vector<const Registration*> here_;
  std::vector<const RemoteKey*> there_;
};

class Mover {
 public:
  Mover(const KvMove& move, bool padded, uint64_t seed)
      : move_(move), random_(seed), padding_(padded ? &random_ : nullptr) {
    src_ids_ = Shuffled(Blocks(move.src, move.src_first), random_);
    dst_ids_ = Shuffled(Blocks(move.dst, move.dst_first), random_);
  }

  bool MoveAll() {
    for (uint32_t rank = 0; rank < move_.src.tp; ++rank) {
      for (uint32_t stage = 0; stage < move_.src.pp; ++stage) MakeSource(rank, stage);
    }
    for (uint32_t rank = 0; rank < move_.dst.tp; ++rank) {
      for (uint32_t stage = 0; stage < move_.dst.pp; ++stage) {
        if (!MoveTo(rank, stage)) return false;
      }
    }
    return true;
  }

 private:
  uint32_t Blocks(const KvInstance& side, uint64_t first) const {
    return static_cast<uint32_t>((first + move_.tokens + side.block_tokens - 1) /
                                 side.block_tokens) +
           1;
  }

  KvShard ShardOf(const KvInstance& side, uint32_t rank, uint32_t stage) const {
    const uint32_t each = move_.model.layers / side.pp;
    return {.tp_rank = rank, .tp_size = side.tp, .first_layer = stage * each, .layers = each};
  }

  Cache Make(const KvInstance& side, const KvShard& shard, size_t blocks, uint8_t fill) {
    const auto [first, count] = HeadRange(move_.model.heads, side.tp, shard.tp_rank);
    return MakeCache(move_.model, shard, first, count, side.form, side.order,
                     static_cast<uint32_t>(blocks), side.block_tokens, padding_, fill);
  }

  // Calls visit(layer, kv, token of the request, head, element) for all that `cache` has of it.
  template <typename Visit>
  void ForAll(const Cache& cache, Visit visit) const {
    for (uint32_t layer = 0; layer < cache.shard.layers; ++layer) {
      for (int kv = 0; kv < (move_.model.v_size > 0 ? 2 : 1); ++kv) {
        for (uint32_t token = 0; token < move_.tokens; ++token) {
          for (uint32_t head = 0; head < cache.heads; ++head) {
            const uint32_t size = kv == 1 ? move_.model.v_size : move_.model.k_size;
            for (uint32_t e = 0; e < size; ++e) {
              visit(cache.shard.first_layer + layer, kv, token, cache.first_head + head, e);
            }
          }
        }
      }
    }
  }

  void Fill(Cache& cache, const KvInstance& side, uint64_t first,
            const std::vector<uint32_t>& ids) {
    ForAll(cache, [&](uint32_t layer, int kv, uint32_t token, uint32_t head, uint32_t e) {
      const uint64_t at = first + token;
      uint8_t* const bytes = cache.At(layer, kv, ids[at / side.block_tokens],
                                      static_cast<uint32_t>(at % side.block_tokens), head, e);
      for (uint32_t b = 0; b < BytesOf(move_.model.element); ++b) {
        bytes[b] = ValueOf(layer, kv, token, head, e, b);
        ++filled_;
      }
    });
  }

  void MakeSource(uint32_t rank, uint32_t stage) {
    sources_.push_back(Make(move_.src, ShardOf(move_.src, rank, stage), src_ids_.size(), 0));
    Fill(sources_.back(), move_.src, move_.src_first, src_ids_);
  }

  bool MoveTo(uint32_t rank, uint32_t stage) {
    Cache dst = Make(move_.dst, ShardOf(move_.dst, rank, stage), dst_ids_.size(), kUntouched);
    Cache want = dst;
    filled_ = 0;
    Fill(want, move_.dst, move_.dst_first, dst_ids_);
    moved_ = 0;
    const auto sources = SourcesOf(move_.model, move_.src.tp, rank, move_.dst.tp);
    EXPECT_OK(sources);
    if (!sources.ok()) return false;
    for (const KvSource& source : *sources) {
      for (Cache& src : sources_) {
        if (src.shard.tp_rank == source.tp_rank && !MoveFrom(src, dst, source.heads)) return false;
      }
    }
    // As many bytes as there are to be, and all of them right: none was written twice.
    EXPECT_EQ(moved_, filled_);
    EXPECT_TRUE(dst.memory == want.memory);
    return moved_ == filled_ && dst.memory == want.memory;
  }

  bool MoveFrom(Cache& src, Cache& dst, KvHeads heads) {
    const uint32_t first = std::max(src.shard.first_layer, dst.shard.first_layer);
    const uint32_t end = std::min(src.shard.first_layer + src.shard.layers,
                                  dst.shard.first_layer + dst.shard.layers);
    if (first >= end) return true;
    CacheSide from(src, src_ids_, move_.src_first);
    CacheSide to(dst, dst_ids_, move_.dst_first);
    const bool writes = random_() % 2 == 0;
    CacheSide& local = writes ? from : to;
    CacheSide& remote = writes ? to : from;
    const RegionTable local_table = local.Table(Access::kNone);
    const RegionTable remote_table =
        remote.Table(writes ? Access::kRemoteWrite : Access::kRemoteRead);
    IdPool pool;
    EXPECT_OK(CheckKvTensors("local", *local.side().layout, local.side().tensors));
    EXPECT_OK(CheckKvTensors("remote", *remote.side().layout, remote.side().tensors));
    const Direction direction = writes ? Direction::kWrite : Direction::kRead;
    const auto prepared = KvLayerLists::Make(
        local.side(), remote.side(), {.heads = heads, .first_layer = first, .layers = end - first},
        move_.tokens, direction, local_table, remote_table);
    EXPECT_OK(prepared);
    if (!prepared.ok()) return false;
    // In as many transfers as may be, each prepared or not.
    for (uint32_t layer = first; layer < end;) {
      const auto layers = static_cast<uint32_t>(1 + random_() % (end - layer));
      const auto list =
          random_() % 2 == 0
              ? prepared->List(layer, layers)
              : ListKvBlocks(local.side(), remote.side(),
                             {.heads = heads, .first_layer = layer, .layers = layers}, move_.tokens,
                             direction, local_table, remote_table, pool);
      EXPECT_OK(list);
      if (!list.ok()) return false;
      CopySlices(*list, local_table, remote_table, writes);
      layer += layers;
    }
    return !::testing::Test::HasFailure();
  }

  // Slices of random size; every run lies in the regions that it names.
  void CopySlices(const BlockList& list, const RegionTable& local, const RegionTable& remote,
                  bool writes) {
    const SliceLimits limits{.max_bytes = 1 + random_() % 300, .max_pieces = 1 + random_() % 20};
    const Holds holds(local, remote);
    const BlockView view = holds.ViewOf(list);
    uint64_t total = 0;
    for (SliceCursor cursor(&view); !cursor.done();) {
      const BlockRange slice = cursor.Next(limits);
      ASSERT_LE(slice.pieces, limits.max_pieces);
      ASSERT_LE(slice.bytes, limits.max_bytes);
      uint64_t bytes = 0;
      uint32_t runs = 0;
      Run before{};
      for (RunWalk walk(slice); !walk.done(); walk.Next()) {
        const Run& run = walk.run();
        ASSERT_LE(++runs, slice.pieces);
        const bool continues = before.local + before.bytes == run.local &&
                               before.remote + before.bytes == run.remote &&
                               before.registration == run.registration && before.key == run.key;
        ASSERT_FALSE(continues) << "two runs that are one";
        before = run;
        ASSERT_TRUE(holds.LocalOf(run).Contains(run.local, run.bytes));
        ASSERT_TRUE(holds.RemoteOf(run).Contains(run.remote, run.bytes));
        auto* const here = reinterpret_cast<uint8_t*>(run.local);
        auto* const there = reinterpret_cast<uint8_t*>(run.remote);
        std::copy_n(writes ? here : there, run.bytes, writes ? there : here);
        bytes += run.bytes;
      }
      ASSERT_EQ(bytes, slice.bytes);
      ASSERT_GT(bytes, 0u);
      total += bytes;
    }
    ASSERT_EQ(total, list.total_bytes());
    moved_ += total;
  }

  const KvMove move_;
  std::mt19937_64 random_;
  std::mt19937_64* const padding_;
  std::vector<uint32_t> src_ids_;
  std::vector<uint32_t> dst_ids_;
  std::vector<Cache> sources_;
  uint64_t filled_ = 0;  // bytes
  uint64_t moved_ = 0;
};

}  // namespace

std::string Text(const KvMove& move) {
  const auto side = [](const KvInstance& i) {
    return "tp " + std::to_string(i.tp) + " pp " + std::to_string(i.pp) + " form " +
           std::to_string(static_cast<int>(i.form)) + " \"" + i.order + "\" blocks of " +
           std::to_string(i.block_tokens);
  };
  return std::to_string(move.model.layers) + " layers, " + std::to_string(move.model.heads) +
         " heads, " + std::to_string(move.model.k_size) + "+" + std::to_string(move.model.v_size) +
         "; " + side(move.src) + " -> " + side(move.dst) + "; tokens " +
         std::to_string(move.tokens) + " from " + std::to_string(move.src_first) + " to " +
         std::to_string(move.dst_first);
}

bool MoveAll(const KvMove& move, bool padded, uint64_t seed) {
  return Mover(move, padded, seed).MoveAll();
}

CacheSide::CacheSide(Cache& cache, const std::vector<uint32_t>& ids, uint64_t first_token)
    : layout_(KvLayout::FromTensors(cache.model, cache.shard, cache.tensors)) {
  EXPECT_OK(layout_);
  // As a peer gets it.
  const auto again = KvLayout::FromParts(layout_->model(), layout_->shard(), layout_->blocks(),
                                         layout_->block_tokens(), layout_->parts());
  EXPECT_OK(again);
  EXPECT_TRUE(again.ok() && *again == *layout_);
  for (auto& of_layer : cache.memory) {
    for (auto& tensor : of_layer) {
      tensors_.push_back(reinterpret_cast<uint64_t>(tensor.data()));
      sizes_.push_back(tensor.size());
    }
  }
  side_ = {.layout = &*layout_, .tensors = tensors_, .ids = ids, .first_token = first_token};
}

RegionTable CacheSide::Table(Access access) const {
  std::vector<RegionView> views;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    views.push_back({.id = RegionId{static_cast<uint32_t>(i + 1)},
                     .base = tensors_[i],
                     .bytes = sizes_[i],
                     .access = access});
  }
  return RegionTable(std::move(views), "a cache");
}

}  // namespace kvxfer::testing
