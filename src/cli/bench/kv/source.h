// The prefill side of a case: prefill ranks as agents of this process, and what they know about the
// decode instance in the other process.
//
// Thread-safety: any thread may call Write, Post, WaitAll and the accessors. The other functions
// use the channel to the target: one thread.

#ifndef KVXFER_CLI_BENCH_KV_SOURCE_H_
#define KVXFER_CLI_BENCH_KV_SOURCE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/common/channel.h"
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

// The data that a prefill rank sends to a decode rank, planned as Agent::WriteBlocks plans it: its
// runs, the time to plan them, and the same runs as blocks for Agent::Write. Thread-safety: none.
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

class Source {
 public:
  // Sets up case number `index` on both sides. The prefill ranks are all of SharesOf, or rank 0 if
  // the mode is `alone`. The arguments must outlive the source.
  static absl::StatusOr<Source> Open(const Case& one, size_t index, Channel& channel,
                                     const Options& options);
  // Destroys the agents of both sides.
  absl::Status Close();

  const Case& one() const { return *one_; }
  // The shares of the ranks of this source.
  const std::vector<Share>& shares() const { return shares_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  SharePlan PlanOf(const Share& share) const;
  absl::StatusOr<Transfer> WritePlain(const Share& share, const PlainBlocks& blocks,
                                      const std::string& name) const;

  // The agents of all decode ranks.
  const std::vector<std::string>& group() const { return group_; }
  // These tokens of the request, for WriteBlocks of any rank.
  KvBlocks Blocks(uint64_t first_token, uint64_t tokens) const;

  // Each rank writes its part of these layers with WriteBlocks; waits for all of them.
  absl::Status Write(const std::string& request, uint32_t first_layer = 0,
                     uint32_t layers = kAllLayers) const;
  // The same without waiting: appends the transfers to `posted`. `ready` is TransferOptions::ready.
  absl::Status Post(const std::string& request, uint32_t first_layer, uint32_t layers,
                    std::vector<Transfer>& posted,
                    const std::atomic<uint32_t>* ready = nullptr) const;
  // Waits until each transfer has ended. After the first error, which it returns, it cancels the
  // others.
  absl::Status WaitAll(const std::vector<Transfer>& posted) const;

  // Ask sends a command to the target (target.h) and returns its answer. Tell does not wait for it.
  absl::StatusOr<Json> Ask(const Json& command) const;
  absl::Status Tell(const Json& command) const;
  absl::StatusOr<Json> Answer() const;

  absl::Status Forget(const std::string& request) const;
  // Checks the content of every share in the target, and then clears the target.
  absl::Status CheckTarget() const;

 private:
  struct Remote {
    std::string name;
    uint64_t base = 0;
  };

  Source() = default;
  absl::Status MakeRanks(const Options& options);
  absl::Status Meet(size_t index);
  const Rank& RankOf(const Share& share) const;

  const Case* one_ = nullptr;
  Channel* channel_ = nullptr;
  std::vector<Share> shares_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> rank_numbers_;
  std::vector<Remote> remotes_;     // all decode ranks
  std::vector<std::string> group_;  // their names
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
};

// --- The decode instance: all of its ranks in one process. It obeys commands of the prefill
// process, which come over a channel. Thread-safety: one thread at a time.

// The longest wait for one answer or transfer.
inline constexpr Duration kPatience = std::chrono::minutes(1);

// The memory of this process now, in bytes: `heap`, in use of malloc, and `rss`, resident.
Json MemoryJson();

// Runs until the command "end". Commands are objects with a field "do":
//   open{case, prefill}      creates the ranks of case number `case` and adds the agents with the
//                            metadata in the list `prefill`; answers with `ranks`, a list of
//                            {name, metadata, base}
//   clear                    zeros the caches
//   check{rank, first, heads}  compares the content of these heads in a rank's cache
//   wait{request, layers}    waits until the first `layers` layers of the request have arrived at
//                            every rank that takes part; answers with `at`, the time of the
//                            steady clock in nanoseconds
//   forget{request}          drops the request, its notifications and its events
//   memory                   answers with MemoryJson
//   close                    destroys the ranks
absl::Status ServeTarget(Channel channel, const std::vector<Case>& cases, const Options& options);

// Runs ServeTarget in a fork of this process, which must not have threads or agents yet, or in a
// thread for the backend loopback. The arguments of Start must outlive it.
class TargetProcess {
 public:
  static absl::StatusOr<std::unique_ptr<TargetProcess>> Start(const std::vector<Case>& cases,
                                                              const Options& options);
  ~TargetProcess();
  TargetProcess(const TargetProcess&) = delete;
  TargetProcess& operator=(const TargetProcess&) = delete;

  Channel& channel() { return process_ ? process_->channel() : channel_; }
  // Sends "end" and waits for the end.
  absl::Status End();
  // If the process was lost, says how; else returns `status`.
  absl::Status Explain(const absl::Status& status);

 private:
  TargetProcess() = default;

  std::optional<WorkerProcess> process_;
  Channel channel_;  // to the thread
  std::jthread thread_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_SOURCE_H_
