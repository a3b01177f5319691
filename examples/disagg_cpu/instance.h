// An instance as the router sees it: a process for each rank, and the table of free blocks, which
// the ranks share as they share block ids. Everything between processes but KV caches goes over
// local sockets (channel.h).
//
// Thread-safety: one thread. Processes are made by fork without exec, before any agent exists: an
// agent does not survive a fork. They end with the router, however that ends.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_INSTANCE_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_INSTANCE_H_

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/disagg_cpu/channel.h"
#include "examples/disagg_cpu/message.h"
#include "examples/disagg_cpu/worker.h"

namespace disagg {

class Instance {
 public:
  static absl::StatusOr<Instance> Start(const InstanceSpec& spec);

  Instance(Instance&&) = default;
  Instance& operator=(Instance&&) = default;
  // Kills ranks that still run.
  ~Instance();

  const InstanceSpec& spec() const { return spec_; }
  std::vector<std::string> RankNames() const;

  // The same command to every rank.
  absl::Status Ask(const Command& command) const;
  // Their answers to it, by rank. An error says whose it is.
  absl::StatusOr<std::vector<Reply>> Await() const;
  absl::StatusOr<std::vector<Reply>> Run(const Command& command) const;
  // Asks the ranks to end, and waits until they have.
  absl::Status Stop();

  // A block table for so many tokens, scattered over the cache. ResourceExhausted.
  absl::StatusOr<std::vector<uint32_t>> TakeBlocks(uint32_t tokens);
  // No transfer touches them any more.
  void GiveBack(std::span<const uint32_t> blocks);

 private:
  struct Rank {
    pid_t pid = -1;
    Channel channel{};
  };

  explicit Instance(const InstanceSpec& spec);
  absl::Status Named(uint32_t rank, const absl::Status& status) const;

  InstanceSpec spec_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> free_;
};

// Makes every rank of `from` know every rank of `to`, as who writes must.
absl::Status Introduce(const Instance& from, const Instance& to);

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_INSTANCE_H_
