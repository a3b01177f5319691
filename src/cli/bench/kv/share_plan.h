// The data that a prefill rank sends to a decode rank, planned as Agent::WriteBlocks plans it: its
// runs, the time to plan them, and the same runs as blocks for Agent::Write.
//
// Thread-safety: none.
#ifndef KVXFER_CLI_BENCH_KV_SHARE_PLAN_H_
#define KVXFER_CLI_BENCH_KV_SHARE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "kvxfer/backend.h"
#include "src/cli/bench/kv/kv_case.h"
#include "src/core/kv/kv_block_list.h"

namespace kvxfer::cli::kv_bench {

struct PlanFigures {
  uint64_t runs = 0;
  uint64_t bytes = 0;
  uint64_t smallest = 0;  // bytes in a run
  uint64_t largest = 0;
  // Medians in nanoseconds per run: the time to list a request, and the time to list it and walk
  // its runs, which is all planning before bytes move.
  double list_ns = 0;
  double plan_ns = 0;
};

// The runs of a request in the order in which WriteBlocks sends them, each as a block: in a paged
// region for each layer if all runs have the same size, else as descriptors.
struct PlainBlocks {
  std::vector<PagedRegion> local{};
  std::vector<PagedRegion> remote{};
  std::vector<uint32_t> local_ids{};
  std::vector<uint32_t> remote_ids{};
  std::vector<Descriptor> from{};
  std::vector<Descriptor> to{};

  bool paged() const { return from.empty(); }
  absl::StatusOr<Transfer> Write(Agent& agent, const std::string& peer,
                                 const TransferOptions& options) const;
};

class SharePlan {
 public:
  // `one` must outlive this object. The caches' memory begins at the bases.
  SharePlan(const Case& one, const Share& share, const KvLayout& own, uint64_t own_base,
            const KvLayout& theirs, uint64_t their_base);

  absl::StatusOr<PlanFigures> Measure();
  absl::StatusOr<PlainBlocks> Plain();

 private:
  absl::StatusOr<BlockList> List(uint32_t layers);
  template <typename Visit>
  void Walk(const BlockList& list, Visit visit);
  absl::StatusOr<std::vector<kvxfer::Run>> RunsOfOneLayer();

  const Case& one_;
  const KvHeads heads_;
  const KvLayout own_;
  const KvLayout theirs_;
  const std::vector<uint64_t> own_tensors_;
  const std::vector<uint64_t> their_tensors_;
  const std::vector<uint32_t> own_ids_;
  const std::vector<uint32_t> their_ids_;
  const RegionTable own_table_;
  const RegionTable their_table_;
  IdPool pool_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_SHARE_PLAN_H_
