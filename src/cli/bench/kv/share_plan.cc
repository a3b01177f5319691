#include "src/cli/bench/kv/share_plan.h"

#include <algorithm>
#include <utility>

#include "src/cli/bench/kv/rank.h"
#include "src/cli/bench/kv/statistics.h"
#include "src/cli/common/stats.h"
#include "src/core/plan/plan.h"

namespace kvxfer::cli::kv_bench {
namespace {

constexpr int kPlans = 15;  // measured plans

RegionTable TableOf(const KvLayout& layout, uint64_t base) {
  return RegionTable({{RegionId{1}, base, CacheBytes(layout), Access::kReadWrite}}, "a cache");
}

}  // namespace

absl::StatusOr<Transfer> PlainBlocks::Write(Agent& agent, const std::string& peer,
                                            const TransferOptions& options) const {
  if (!paged()) return agent.Write(peer, DescriptorBlocks{.local = from, .remote = to}, options);
  return agent.Write(
      peer,
      PagedBlocks{
          .local = local, .remote = remote, .local_ids = local_ids, .remote_ids = remote_ids},
      options);
}

SharePlan::SharePlan(const Case& one, const Share& share, const KvLayout& own, uint64_t own_base,
                     const KvLayout& theirs, uint64_t their_base)
    : one_(one),
      heads_(share.heads),
      own_(own),
      theirs_(theirs),
      own_tensors_(TensorsAt(own_, own_base)),
      their_tensors_(TensorsAt(theirs_, their_base)),
      own_ids_(one.IdsOf(one.prefill)),
      their_ids_(one.IdsOf(one.decode)),
      own_table_(TableOf(own_, own_base)),
      their_table_(TableOf(theirs_, their_base)) {}

absl::StatusOr<BlockList> SharePlan::List(uint32_t layers) {
  return ListKvBlocks({.layout = &own_, .tensors = own_tensors_, .ids = own_ids_},
                      {.layout = &theirs_, .tensors = their_tensors_, .ids = their_ids_},
                      {.heads = heads_, .layers = layers}, one_.tokens, Direction::kWrite,
                      own_table_, their_table_, pool_);
}

// Calls visit(run) for each run. The list is one slice (up to 2^32 runs), so that no run is cut.
template <typename Visit>
void SharePlan::Walk(const BlockList& list, Visit visit) {
  const Registration registration{};
  const RemoteKey key{};
  const Registration* const here = &registration;
  const RemoteKey* const there = &key;
  const BlockView view = list.View({&here, 1}, {&there, 1});
  for (SliceCursor cursor(&view); !cursor.done();) {
    RunWalk walk(cursor.Next({.max_bytes = UINT64_MAX, .max_pieces = UINT64_MAX}));
    for (; !walk.done(); walk.Next()) visit(walk.run());
  }
}

absl::StatusOr<PlanFigures> SharePlan::Measure() {
  PlanFigures figures{.smallest = UINT64_MAX};
  std::vector<double> list_ns;
  std::vector<double> plan_ns;
  for (int i = -1; i < kPlans; ++i) {
    const int64_t start = MonotonicNanoseconds();
    auto list = List(one_.kv.layers);
    const int64_t listed = MonotonicNanoseconds();
    if (!list.ok()) return list.status();
    uint64_t runs = 0;
    Walk(*list, [&](const kvxfer::Run&) { ++runs; });
    const int64_t planned = MonotonicNanoseconds();
    figures.runs = runs;
    figures.bytes = list->total_bytes();
    if (i < 0) {  // warm-up
      Walk(*list, [&](const kvxfer::Run& run) {
        figures.smallest = std::min(figures.smallest, run.bytes);
        figures.largest = std::max(figures.largest, run.bytes);
      });
    } else {
      list_ns.push_back(static_cast<double>(listed - start) / static_cast<double>(runs));
      plan_ns.push_back(static_cast<double>(planned - start) / static_cast<double>(runs));
    }
    list->ReleaseIds(pool_);
  }
  figures.list_ns = Median(list_ns);
  figures.plan_ns = Median(plan_ns);
  return figures;
}

absl::StatusOr<std::vector<kvxfer::Run>> SharePlan::RunsOfOneLayer() {
  auto list = List(1);
  if (!list.ok()) return list.status();
  std::vector<kvxfer::Run> runs;
  Walk(*list, [&](const kvxfer::Run& run) { runs.push_back(run); });
  list->ReleaseIds(pool_);
  return runs;
}

absl::StatusOr<PlainBlocks> SharePlan::Plain() {
  const auto runs = RunsOfOneLayer();
  if (!runs.ok()) return runs.status();
  const uint64_t bytes = runs->front().bytes;
  const bool paged = std::ranges::all_of(*runs, [&](const kvxfer::Run& run) {
    return run.bytes == bytes && (run.local - own_tensors_[0]) % bytes == 0 &&
           (run.remote - their_tensors_[0]) % bytes == 0;
  });
  PlainBlocks plain;
  for (uint32_t layer = 0; layer < one_.kv.layers; ++layer) {
    const auto region = [&](const KvLayout& layout, const std::vector<uint64_t>& tensors) {
      return PagedRegion{.base = tensors[layer],
                         .block_bytes = bytes,
                         .stride = bytes,
                         .count = layout.tensor_bytes(0) / bytes};
    };
    if (paged) {
      plain.local.push_back(region(own_, own_tensors_));
      plain.remote.push_back(region(theirs_, their_tensors_));
      continue;
    }
    for (const kvxfer::Run& run : *runs) {
      plain.from.push_back({run.local - own_tensors_[0] + own_tensors_[layer], run.bytes});
      plain.to.push_back({run.remote - their_tensors_[0] + their_tensors_[layer], run.bytes});
    }
  }
  if (!paged) return plain;
  for (const kvxfer::Run& run : *runs) {
    plain.local_ids.push_back(static_cast<uint32_t>((run.local - own_tensors_[0]) / bytes));
    plain.remote_ids.push_back(static_cast<uint32_t>((run.remote - their_tensors_[0]) / bytes));
  }
  return plain;
}

}  // namespace kvxfer::cli::kv_bench
