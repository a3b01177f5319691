// One direction of a benchmark: transfers of scattered blocks between a local cache and caches of
// peers. `kvxfer bench` is the initiator. In a bidirectional run the service on the other side is
// the initiator of a second direction.

#ifndef KVXFER_CLI_BENCH_DRIVE_H_
#define KVXFER_CLI_BENCH_DRIVE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/bench/loop.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {

// One complete configuration of `kvxfer bench`: what each initiator does. It is sent to the
// processes of the initiators.
struct BenchCase {
  std::vector<std::string> targets{};  // host:port of the services that each initiator uses
  std::string backend{};
  std::string listen{};
  MemorySides memory{};
  bool write = true;
  bool latency = false;        // measures round trips of `block_bytes` in place of transfers
  bool by_message = false;     // which are answered by a notification alone
  bool bidirectional = false;  // the targets move as much back at the same time
  uint64_t threads = 1;        // streams to each target
  uint64_t pieces = 1;         // regions of a cache
  uint64_t block_bytes = 0;
  uint64_t request_blocks = 0;  // ids in one request; for a trace, in the request that is verified
  uint64_t cache_blocks = 0;    // for a trace, the blocks of both caches; 0: as many as are moved
  uint64_t seed = 1;
  Duration timeout = std::chrono::seconds(60);

  uint64_t streams() const { return targets.size() * threads; }
  // The blocks of one target that one direction uses.
  uint64_t target_share() const { return threads * request_blocks; }
  // The caches of an initiator and of a target. In a bidirectional run, each direction has its own
  // half, so that no block is read and written at once.
  KvCacheShape initiator_shape() const {
    return Shape(targets.size() * target_share(), memory.here);
  }
  KvCacheShape target_shape() const { return Shape(target_share(), memory.there); }

 private:
  KvCacheShape Shape(uint64_t share, const MemoryChoice& of_side) const;
};

// Checks for overflows only; the code that uses a field checks the rest.
absl::Status CheckCase(const BenchCase& c);
Json ToJson(const BenchCase& bench);
absl::StatusOr<BenchCase> BenchCaseFromJson(const Json& json);

// The blocks of one cache that the streams of one direction use. `seed`, which both sides know,
// gives the blocks a random order. Stream i has `blocks` of them, from position first + i * blocks
// on.
struct BlockShare {
  uint64_t seed = 0;
  uint32_t first = 0;
  uint32_t blocks = 0;
};

// A peer and its cache.
struct DriveLink {
  std::string peer{};
  uint64_t session = 0;  // of the SessionNote
  std::vector<PagedRegion> remote{};
};

// Stream i repeats one request: it moves blocks of `local` into (or from) the cache of link i /
// threads. The `threads` streams of a link use the blocks `remote` of its cache. Plain values;
// read-only after Make.
class FixedRequests {
 public:
  // InvalidArgument: a share does not fit its cache.
  static absl::StatusOr<FixedRequests> Make(const KvCache& cache, std::span<const DriveLink> links,
                                            uint32_t threads, const BlockShare& local,
                                            const BlockShare& remote);
  size_t streams() const { return streams_; }
  Request Of(size_t stream, int64_t due_ns) const;

 private:
  std::span<const PagedRegion> local_{};
  std::vector<std::span<const PagedRegion>> remote_;  // by link
  size_t streams_ = 0;
  uint32_t threads_ = 1;
  uint32_t blocks_ = 0;
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;  // the same for each link
};

// FixedRequests, each at the time when it is due.
class FixedSource : public RequestSource {
 public:
  FixedSource(const FixedRequests& requests, const LoopSpec& spec)
      : requests_(requests), schedule_(spec, requests.streams()) {}
  std::optional<Request> Next(size_t stream) override {
    const std::optional<int64_t> due = schedule_.Next(stream);
    if (!due) return std::nullopt;
    return requests_.Of(stream, *due);
  }

 private:
  const FixedRequests& requests_;
  Schedule schedule_;
};

// Posts requests to the peers of the links, with a SessionNote, and waits for the end of each.
// Thread-safety: any thread.
class Mover {
 public:
  // If `timeline` is not null, it records the times of the first requests, by link and stream.
  Mover(Agent& agent, std::span<const DriveLink> links, bool write, Duration timeout,
        TimelineRecorder* timeline = nullptr)
      : agent_(agent), links_(links), write_(write), timeout_(timeout), timeline_(timeline) {}
  absl::Status Move(size_t stream, const Request& request) const;

 private:
  absl::StatusOr<Transfer> Post(const Request& request, const SessionNote& note) const;

  Agent& agent_;
  const std::span<const DriveLink> links_;
  const bool write_;
  const Duration timeout_;
  TimelineRecorder* const timeline_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_DRIVE_H_
