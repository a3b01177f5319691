// This agent's KV caches, and the requests that peers write into them.
//
// Thread-safety: table() from any thread; everything else by the driver only.

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
#include "src/agent/engine/event_queue.h"
#include "src/agent/engine/progress_loop.h"
#include "src/core/kv/kv_cache_table.h"
#include "src/core/kv/kv_inbox.h"
#include "src/core/plan/region_table.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class KvRegistry {
 public:
  KvRegistry(ProgressLoop* loop, EventQueue* events, Duration request_timeout)
      : loop_(loop), events_(events), request_timeout_(request_timeout) {}

  std::shared_ptr<const KvCacheTable> table() const;

  // See Agent::RegisterKvCache. CheckKvTensors must have accepted `tensors`. `regions` are this
  // agent's.
  absl::Status Register(std::string_view name, const KvLayout& layout,
                        std::span<const uint64_t> tensors, const RegionTable& regions);
  absl::Status Deregister(std::string_view name);
  // FailedPrecondition: a KV cache lies in the region.
  absl::Status CheckFree(RegionId region) const;

  // A part of a request has arrived from `peer`. Errors as KvInbox::Take; NotFound: no such cache.
  // If an error makes the request lost, the application is notified.
  absl::StatusOr<KvInbox::Taken> Take(const KvPartFrame& frame, std::string_view peer, Time now);
  absl::Status Drop(std::string_view cache, std::string_view request);
  void Expire(Time now);
  Time NextExpiry() const;

  // The layers of one request that callers of WaitLayers wait for. Its address is the key of
  // ProgressLoop::Wake.
  struct Watch {
    std::atomic<uint32_t> ready{0};
    std::atomic<bool> given_up{false};
    uint32_t watchers = 0;  // used by the driver
  };
  // NotFound: no such cache. InvalidArgument: the cache has fewer layers.
  absl::StatusOr<std::shared_ptr<Watch>> StartWatch(std::string_view cache,
                                                    std::string_view request, uint32_t layers);
  // Ends one use of a watch that StartWatch returned. Does nothing if the cache was deregistered
  // since, even if another cache has the name now.
  void EndWatch(std::string_view cache, std::string_view request, const Watch* watch);

  // Somebody watches.
  bool watched() const;

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
  EventQueue* const events_;
  const Duration request_timeout_;
  std::map<std::string, Cache, std::less<>> caches_;
  uint64_t whole_ = 0;
  uint64_t lost_ = 0;
  mutable std::mutex mu_;
  std::shared_ptr<const KvCacheTable> table_ = std::make_shared<const KvCacheTable>();
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_KV_REGISTRY_H_
