// The agent's KV caches, and the requests that peers write into them.
//
// Thread-safety: table() from any thread; everything else by the owner of the engine.

#ifndef KVXFER_AGENT_KV_KV_REGISTRY_H_
#define KVXFER_AGENT_KV_KV_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/agent/engine/progress_loop.h"
#include "src/agent/kv/kv_events.h"
#include "src/core/kv/kv_cache_table.h"
#include "src/core/kv/kv_inbox.h"
#include "src/core/plan/region_table.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class KvRegistry {
 public:
  KvRegistry(ProgressLoop* loop, KvEvents* events, Duration request_timeout)
      : loop_(loop), events_(events), request_timeout_(request_timeout) {}

  std::shared_ptr<const KvCacheTable> table() const;

  // See Agent::RegisterKvCache. The tensors are such as CheckKvTensors finds good; `regions`: those
  // of the agent.
  absl::Status Register(std::string_view name, const KvLayout& layout,
                        std::span<const uint64_t> tensors, const RegionTable& regions);
  absl::Status Deregister(std::string_view name);
  // FailedPrecondition: a cache lies in the region.
  absl::Status CheckFree(RegionId region) const;

  // A part of a request has come from `peer`. Errors as KvInbox::Take, and where the request is
  // lost by them its application is told; NotFound: no such cache.
  absl::StatusOr<KvInbox::Taken> Take(const KvPartFrame& frame, std::string_view peer, Time now);
  absl::Status Drop(std::string_view cache, std::string_view request);
  void Expire(Time now);
  Time NextExpiry() const;

  // What somebody waits for: layers of one request. Also the key of ProgressLoop::Wake.
  struct Watch {
    std::atomic<uint32_t> ready{0};
    std::atomic<bool> given_up{false};
    uint32_t watchers = 0;  // by the owner
  };
  // NotFound: no such cache; InvalidArgument: it has not so many layers.
  absl::StatusOr<std::shared_ptr<Watch>> StartWatch(std::string_view cache,
                                                    std::string_view request, uint32_t layers);
  // Of what StartWatch gave, of the cache that has this name now or another one before it.
  void EndWatch(std::string_view cache, std::string_view request, const Watch* watch);

  uint64_t whole() const { return whole_; }
  uint64_t lost() const { return lost_; }

 private:
  struct Cache {
    explicit Cache(const KvLayout& layout) : inbox(layout) {}
    uint64_t id = 0;
    KvInbox inbox;
    std::vector<RegionId> regions{};
    std::map<std::string, std::shared_ptr<Watch>, std::less<>> watches{};
  };

  void Lose(std::string_view cache, std::string_view request, std::string_view why);
  void Tell(Cache& cache, std::string_view request);

  ProgressLoop* const loop_;
  KvEvents* const events_;
  const Duration request_timeout_;
  std::map<std::string, Cache, std::less<>> caches_;
  uint64_t whole_ = 0;
  uint64_t lost_ = 0;
  mutable std::mutex mu_;
  std::shared_ptr<const KvCacheTable> table_ = std::make_shared<const KvCacheTable>();
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_KV_REGISTRY_H_
