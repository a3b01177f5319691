// Two agents of this process: one writes blocks by their ids to the other. Over the null backend,
// or over the verbs backend with a null device, nothing is moved. What it costs is the send path:
// checking and keeping the ids, cutting slices, posting, completions, the end. Over cuda_ipc the
// CUDA driver is a stand-in, which moves the bytes.
//
// Thread-safety: none.

#ifndef KVXFER_TESTS_SUPPORT_SEND_PATH_H_
#define KVXFER_TESTS_SUPPORT_SEND_PATH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "tests/support/gpu_space.h"

namespace kvxfer::testing {

struct SendPathShape {
  uint32_t ids = 32768;  // blocks of one region, written in an order that coalesces nothing
  uint32_t regions = 1;  // paged regions, e.g. K and V of each layer
  uint64_t block_bytes = 4096;
  enum class Backend : uint8_t { kNull, kVerbs, kCudaIpc };
  Backend backend = Backend::kNull;
  // Further agents that the one that writes is connected to, and that are connected to the other.
  // They do nothing.
  uint32_t idle_peers = 0;
};

// An agent over the null backend, or over verbs with a null device, with `span` registered. `spin`:
// AgentOptions::spin.
absl::StatusOr<std::unique_ptr<Agent>> MakeNullAgent(std::string name, const MemorySpan& span,
                                                     bool verbs = false,
                                                     Duration spin = Duration::zero());
// Every id once; of two seeds, no two ids that follow each other in both lists.
std::vector<uint32_t> PermutedIds(uint32_t ids, uint32_t seed);
// Connects `from` to `to`, which gets a notification. What `from` calls it.
absl::StatusOr<std::string> ConnectNull(Agent& from, const Agent& to);

class SendPath {
 public:
  static absl::StatusOr<std::unique_ptr<SendPath>> Create(const SendPathShape& shape);
  ~SendPath();
  SendPath(const SendPath&) = delete;
  SendPath& operator=(const SendPath&) = delete;

  uint64_t runs() const { return uint64_t{shape_.ids} * shape_.regions; }
  // Agent::Write of all blocks, on this thread. Nothing moves, so it may end within the call.
  absl::StatusOr<Transfer> Submit(const TransferOptions& options = {});
  // Submits, and waits for the end.
  absl::Status Send(const TransferOptions& options = {});
  // The target's side of a notification, taken out so that its credit comes back.
  absl::Status TakeNotification();

 private:
  explicit SendPath(const SendPathShape& shape) : shape_(shape) {}
  absl::Status Init();
  absl::Status AddIdlePeer();

  absl::Status MakeMemory();
  absl::StatusOr<std::unique_ptr<Agent>> MakeAgent(std::string name) const;

  const SendPathShape shape_;
  std::unique_ptr<GpuSpace> gpu_;
  MemorySpan memory_;  // gpu_, else address space without pages
  std::unique_ptr<Agent> source_;
  std::unique_ptr<Agent> target_;
  std::vector<std::unique_ptr<Agent>> idle_;
  std::string peer_;
  std::vector<PagedRegion> regions_;
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_SEND_PATH_H_
