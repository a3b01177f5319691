// The initiator's side of `kvxfer bench`: transfers of scattered blocks against a PeerService.
#ifndef KVXFER_CLI_BENCH_RUN_H_
#define KVXFER_CLI_BENCH_RUN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/channel.h"
#include "src/cli/host_memory.h"
#include "src/cli/stats.h"

namespace kvxfer::cli {

struct BenchConfig {
  std::string server{};  // empty: a second process
  std::string backend{};
  std::string listen{};  // of AgentSetup
  std::string op = "write";
  std::string memory = "mapped";
  std::vector<uint64_t> block_sizes{};
  uint64_t total = uint64_t{256} << 20;  // bytes of one round, rounded down to whole blocks
  uint64_t rounds = 10;
  uint64_t seed = 1;
  Duration timeout = std::chrono::seconds(60);
  bool json = false;
};

// One block size. A round is one transfer of `blocks` blocks; it ends when the initiator is told
// that it is done and, where both sides share a clock, the target's application was notified.
struct BenchRow {
  uint64_t block_bytes = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;  // of one round
  Summary round_us{};
  double local_cpu_seconds = 0;  // of all rounds
  double remote_cpu_seconds = 0;

  double total_gb() const {
    return static_cast<double>(bytes) * static_cast<double>(round_us.count) * 1e-9;
  }
  double gb_per_s() const { return total_gb() / (round_us.sum * 1e-6); }
};

// Thread-safety: one thread. What it is given outlives it, and `memory`, which Prepare allocates
// and registers, outlives the agent.
class BenchRun {
 public:
  BenchRun(const BenchConfig& config, Channel& channel, Agent& agent, HostMemory& memory)
      : config_(config), channel_(channel), agent_(agent), memory_(memory) {}

  // InvalidArgument: the configuration makes no sense.
  absl::Status Prepare();
  // Moves one round unmeasured and checks every byte of it, then measures. DataLoss: wrong bytes.
  absl::StatusOr<BenchRow> Run(uint64_t block_bytes);

  std::string path() const;

 private:
  // Blocks local_ids[i] and remote_ids[i] belong together.
  struct Scatter {
    PagedRegion local;
    PagedRegion remote;
    std::vector<uint32_t> local_ids;
    std::vector<uint32_t> remote_ids;
  };
  // The target's report. Its times compare with ours only where both have one clock.
  struct Remote {
    std::vector<int64_t> notified_ns;
    double cpu_seconds = 0;  // since its process began
    bool same_clock = false;
  };

  Scatter MakeScatter(uint64_t block_bytes, uint32_t count) const;
  absl::Status VerifiedRound(const Scatter& scatter);
  // When it ended at the initiator, in MonotonicNanoseconds.
  absl::StatusOr<int64_t> Round(const Scatter& scatter);
  // What the target has seen since the last report: `notifications` of them, neither more nor less.
  absl::StatusOr<Remote> Report(size_t notifications);
  absl::StatusOr<Json> Content(const char* type, const Scatter& scatter);

  const BenchConfig& config_;
  Channel& channel_;
  Agent& agent_;
  HostMemory& memory_;
  uint64_t remote_base_ = 0;
  uint64_t session_ = 0;
  uint64_t sequence_ = 0;
  std::string peer_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_RUN_H_
