// `kvxfer demo` with unlike sides: a process for each rank of a prefill and of a decode instance,
// and the KV caches of some requests from the one to the other (Agent::WriteBlocks). This process
// hands out the blocks of both sides, as a scheduler does, and moves no byte.
#ifndef KVXFER_CLI_DEMO_GROUP_H_
#define KVXFER_CLI_DEMO_GROUP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/demo/shard.h"
#include "src/cli/demo/shares.h"

namespace kvxfer::cli {

struct DemoGroupRun {
  std::vector<DemoShard> prefill{};
  std::vector<DemoShard> decode{};
  std::vector<DemoShare> shares{};
  std::vector<std::string> paths{};   // of each share, what ChosenPath says after the run
  std::vector<std::string> errors{};  // of each request, what was found wrong first; empty: right
  std::vector<uint64_t> verified{};   // requests, by decode rank
  // By decode rank: from the posting of rounds to the last notification of each.
  std::vector<double> wire_seconds{};
  double seconds = 0;      // content made and checked too
  double cpu_seconds = 0;  // of all processes
  absl::Status guards{};   // and blocks of no request

  size_t CountVerified() const;
  uint64_t bytes() const;  // into all decode ranks
};

// An error: the run broke off. What it found wrong is in the run.
absl::StatusOr<DemoGroupRun> RunDemoGroup(const DemoConfig& config, const KvSide& prefill,
                                          const KvSide& decode);

void PrintGroupTable(const DemoGroupRun& run);
void PrintGroupJson(const DemoGroupRun& run);
// DataLoss for the first thing that is wrong.
absl::Status OutcomeOf(const DemoGroupRun& run);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_GROUP_H_
