// Planning between unlike KV caches, all that is done for a run before its bytes move: 64 blocks of
// 32 layers of Llama-3.1-8B, tensor parallelism 4 to 2, 16 tokens a block to 32; the list is made
// and walked slice by slice. A transfer of one block a layer shows what a list itself costs.
#include <benchmark/benchmark.h>

#include <numeric>
#include <string>
#include <vector>

#include "kvxfer/backend.h"
#include "src/core/kv/kv_block_list.h"
#include "src/core/plan/plan.h"

namespace kvxfer {
namespace {

constexpr uint32_t kLayers = 32;

// One tensor a layer, all in one region.
struct Cache {
  Cache(uint32_t tp, uint32_t rank, const std::string& axes, uint32_t block_tokens,
        uint32_t blocks) {
    const KvModel model{.layers = kLayers, .heads = 8, .k_size = 128, .v_size = 128};
    KvTensor tensor{.axes = axes, .shape = {}, .strides = std::vector<uint64_t>(axes.size())};
    for (const char axis : axes) {
      const uint64_t length = axis == 'B'   ? blocks
                              : axis == 'N' ? block_tokens
                              : axis == 'H' ? model.heads / tp
                                            : 256;
      tensor.shape.push_back(length);
    }
    uint64_t extent = 1;
    for (size_t i = axes.size(); i-- > 0; extent *= tensor.shape[i]) tensor.strides[i] = extent;
    const KvShard shard{.tp_rank = rank, .tp_size = tp, .layers = kLayers};
    layout.push_back(*KvLayout::FromTensors(model, shard, {&tensor, 1}));
    constexpr uint64_t kBase = uint64_t{1} << 32;
    const uint64_t bytes = layout[0].tensor_bytes(0);
    for (uint32_t i = 0; i < kLayers; ++i) tensors.push_back(kBase + i * bytes);
    table = RegionTable({{RegionId{1}, kBase, kLayers * bytes, Access::kReadWrite}}, "a cache");
    ids.resize(blocks);
    std::iota(ids.begin(), ids.end(), 0);
  }
  KvSide side() const { return {.layout = layout.data(), .tensors = tensors, .ids = ids}; }

  std::vector<KvLayout> layout;  // one
  std::vector<uint64_t> tensors;
  std::vector<uint32_t> ids;
  RegionTable table;
};

void Plan(benchmark::State& state, const std::string& src_axes, const std::string& dst_axes) {
  const auto blocks = static_cast<uint32_t>(state.range(0));
  const Cache src(4, 1, src_axes, 16, 2 * blocks);
  const Cache dst(2, 0, dst_axes, 32, blocks);
  const KvRange range{.heads = {2, 2}, .layers = kLayers};
  const uint64_t tokens = uint64_t{32} * blocks;
  const Registration registration{};
  const RemoteKey key{};
  const Registration* const here = &registration;
  const RemoteKey* const there = &key;
  IdPool pool;
  int64_t runs = 0;
  for (auto _ : state) {
    auto list = ListKvBlocks(src.side(), dst.side(), range, tokens, Direction::kWrite, src.table,
                             dst.table, pool);
    const BlockView view = list->View({&here, 1}, {&there, 1});
    for (SliceCursor cursor(&view); !cursor.done();) {
      RunWalk walk(cursor.Next({.max_bytes = 1 << 20, .max_pieces = 4096}));
      for (; !walk.done(); walk.Next()) {
        benchmark::DoNotOptimize(walk.run());
        ++runs;
      }
    }
    list->ReleaseIds(pool);
  }
  state.SetItemsProcessed(runs);  // items are runs
}
BENCHMARK_CAPTURE(Plan, heads_outside, "BHNC", "BHNC")->Arg(1)->Arg(64);
BENCHMARK_CAPTURE(Plan, heads_inside, "BNHC", "BNHC")->Arg(1)->Arg(64);
BENCHMARK_CAPTURE(Plan, transposed, "BHNC", "BNHC")->Arg(1)->Arg(64);

}  // namespace
}  // namespace kvxfer
