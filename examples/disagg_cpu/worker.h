// One rank of an instance: its agent, its part of the KV cache, its part of the attention. This is
// the file to read for how a server uses kvxfer.
//
// Thread-safety: one thread.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_WORKER_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_WORKER_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/disagg_cpu/channel.h"
#include "examples/disagg_cpu/message.h"
#include "examples/disagg_cpu/model.h"
#include "examples/disagg_cpu/paged_cache.h"
#include "kvxfer/agent.h"
#include "kvxfer/kv_migration.h"

namespace disagg {

struct InstanceSpec {
  std::string name{};
  uint32_t tp_size = 1;
  CacheSpec cache{};
  uint64_t model_seed = 0;

  // Of the agent of that rank.
  std::string RankName(uint32_t rank) const { return name + "-" + std::to_string(rank); }
};

class Worker {
 public:
  static absl::StatusOr<std::unique_ptr<Worker>> Create(const InstanceSpec& spec,
                                                        TensorGroup group);

  // Does what the router asks for.
  absl::StatusOr<Reply> Run(const Command& command);

 private:
  // What whoever has a request tells whoever gets it, in the notification of the last write.
  struct Handover {
    uint32_t token = 0;       // the last one that was made; its K and V are not in the cache yet
    uint32_t cached = 0;      // tokens before it, which are
    uint64_t made_at_ns = 0;  // when it was made

    std::string ToPayload() const;
    static absl::StatusOr<Handover> FromPayload(const std::string& payload);
  };
  // Tokens of a request, from its first one on, and layers of the model.
  struct Range {
    uint32_t tokens = 0;
    uint32_t first_layer = 0;
    uint32_t layers = kLayers;
  };

  Worker(const InstanceSpec& spec, TensorGroup group, PagedCache cache);

  absl::StatusOr<Reply> Connect(const Command& command);
  absl::StatusOr<Reply> Prefill(const Command& command);
  absl::StatusOr<Reply> Decode(const Command& command);
  absl::StatusOr<Handover> AwaitRequest(const Command& command, Reply& reply);
  absl::Status Continue(const Command& command, Handover& at, Reply& reply);

  Shard OwnShard() const;
  static kvxfer::KvBlocks BlocksOf(const Command& command, const Range& range);
  absl::StatusOr<kvxfer::Transfer> Write(const Command& command, const Range& range,
                                         const Handover* handover);
  absl::StatusOr<kvxfer::Notification> AwaitNotification(const std::string& request);

  const InstanceSpec spec_;
  const Model model_;
  const TensorGroup group_;
  const PagedCache cache_;  // before the agent, so that it outlives it
  std::unique_ptr<kvxfer::Agent> agent_;
  std::map<std::string, kvxfer::Notification> told_;  // that nobody has waited for yet
};

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_WORKER_H_
