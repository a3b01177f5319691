// Walking the runs between two unlike layouts: 64 blocks of one layer of Llama-3.1-8B, tensor
// parallelism 4 to 2, 16 tokens a block to 32.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "src/core/reshard.h"

namespace kvxfer {
namespace {

constexpr uint32_t kBlocks = 64;

KvLayout Layout(uint32_t tp, uint32_t rank, const std::string& axes, uint32_t block_tokens) {
  const KvModel model{.layers = 1, .heads = 8, .k_size = 128, .v_size = 128};
  KvTensor tensor{.axes = axes, .shape = {}, .strides = std::vector<uint64_t>(axes.size())};
  for (const char axis : axes) {
    const uint64_t length = axis == 'B'   ? kBlocks
                            : axis == 'N' ? block_tokens
                            : axis == 'H' ? model.heads / tp
                                          : 256;
    tensor.shape.push_back(length);
  }
  uint64_t extent = 1;
  for (size_t i = axes.size(); i-- > 0; extent *= tensor.shape[i]) tensor.strides[i] = extent;
  return *KvLayout::FromTensors(model, {.tp_rank = rank, .tp_size = tp, .layers = 1}, {&tensor, 1});
}

void Walk(benchmark::State& state, const std::string& src_axes, const std::string& dst_axes) {
  const KvLayout src = Layout(4, 1, src_axes, 16);
  const KvLayout dst = Layout(2, 0, dst_axes, 32);
  const auto reshard = Reshard::Between(src, dst, src.heads());
  std::vector<StridedCopy> copies;
  int64_t runs = 0;
  for (auto _ : state) {
    uint64_t sum = 0;
    for (KvPieces pieces(16, 0, 32, 0, kBlocks * 16); !pieces.done();) {
      const KvPiece piece = pieces.Next();
      copies.clear();
      reshard->Copies(0, 1, piece, copies);
      for (const StridedCopy& copy : copies) {
        ForEachRun(copy, piece.src_block * copy.src_block_stride,
                   piece.dst_block * copy.dst_block_stride,
                   [&](uint64_t from, uint64_t to, uint64_t bytes) {
                     sum += from ^ to ^ bytes;
                     ++runs;
                   });
      }
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetItemsProcessed(runs);  // items are runs
}
BENCHMARK_CAPTURE(Walk, heads_outside, "BHNC", "BHNC");
BENCHMARK_CAPTURE(Walk, heads_inside, "BNHC", "BNHC");
BENCHMARK_CAPTURE(Walk, transposed, "BHNC", "BNHC");

}  // namespace
}  // namespace kvxfer
