// Two agents of this process over the null backend: one writes requests layer by layer into the KV
// cache of the other, and nothing is moved. What it costs is what the thread that computes the
// layers pays for each.
//
// Thread-safety: none.

#ifndef KVXFER_TESTS_SUPPORT_LAYER_PATH_H_
#define KVXFER_TESTS_SUPPORT_LAYER_PATH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"

namespace kvxfer::testing {

struct LayerPathShape {
  uint32_t layers = 64;
  uint32_t blocks = 256;  // of each request, in an order that coalesces nothing
  bool prepared = true;   // Agent::WriteLayers; else WriteBlocks
  // A thread of this program drives the agent that writes and never sleeps; else its background
  // thread does, and sleeps.
  bool spins = false;
};

class LayerPath {
 public:
  static absl::StatusOr<std::unique_ptr<LayerPath>> Create(const LayerPathShape& shape);
  ~LayerPath();
  LayerPath(const LayerPath&) = delete;
  LayerPath& operator=(const LayerPath&) = delete;

  uint32_t layers() const { return shape_.layers; }
  // Begins a request; prepares its blocks.
  absl::Status Begin();
  // Writes a layer of it, each once.
  absl::Status Write(uint32_t layer);
  // Sleeps until all of it has arrived. This thread does not drive the agent that writes.
  absl::Status Finish();

 private:
  explicit LayerPath(const LayerPathShape& shape) : shape_(shape) {}
  absl::Status Init();
  absl::Status AddCache(Agent& agent, const KvLayout& layout) const;
  KvBlocks Blocks() const;

  const LayerPathShape shape_;
  void* memory_ = nullptr;  // address space without pages
  size_t memory_bytes_ = 0;
  std::unique_ptr<Agent> source_;
  std::unique_ptr<Agent> target_;
  std::vector<std::string> group_;
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
  uint64_t requests_ = 0;
  KvOptions options_;
  PreparedBlocks blocks_;
  std::vector<Transfer> transfers_;
  std::jthread driver_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_LAYER_PATH_H_
