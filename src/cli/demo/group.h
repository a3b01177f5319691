// `kvxfer demo` with two instances: each rank of a prefill and of a decode instance is a process,
// and Agent::WriteBlocks moves the KV caches of some requests between them. This process assigns
// the blocks of both sides, as a scheduler does, and moves no data.
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
  std::vector<std::string> paths{};   // of each share: ChosenPath after the run
  std::vector<std::string> errors{};  // of each request: the first error found; empty: verified
  std::vector<uint64_t> verified{};   // number of requests, by decode rank
  // By decode rank: the sum over all rounds, from posting to the last notification.
  std::vector<double> wire_seconds{};
  double seconds = 0;      // with making and checking content
  double cpu_seconds = 0;  // of all processes
  absl::Status guards{};   // of guard zones and of blocks that no request uses

  size_t CountVerified() const;
  uint64_t bytes() const;  // into all decode ranks
};

// An error means that the run broke off. Wrong bytes are reported in the result.
absl::StatusOr<DemoGroupRun> RunDemoGroup(const DemoConfig& config, const KvSide& prefill,
                                          const KvSide& decode);

void PrintGroupTable(const DemoGroupRun& run);
void PrintGroupJson(const DemoGroupRun& run);
// DataLoss names the first thing that is wrong.
absl::Status OutcomeOf(const DemoGroupRun& run);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_GROUP_H_
