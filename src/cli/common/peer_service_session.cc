// The requests of PeerService that concern the cache of one session.

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/drive.h"
#include "src/cli/bench/loop.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/peer_service.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kMaxDriveThreads = 256;
constexpr uint64_t kIdBytes = 2 * sizeof(uint32_t);  // of a block

// Reads whole numbers of a request, which is not trusted, and keeps the first error.
class Numbers {
 public:
  explicit Numbers(const Json& json) : json_(json) {}
  uint64_t Number(const char* name, uint64_t least, uint64_t most) {
    const absl::StatusOr<uint64_t> value = GetUint(json_, name);
    if (!value.ok()) {
      status_.Update(value.status());
      return least;
    }
    if (*value >= least && *value <= most) return *value;
    status_.Update(Invalid("'", name, "' must be from ", least, " to ", most, ", not ", *value));
    return least;
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& json_;
  absl::Status status_;
};

// The client's regions must have the shape of the cache here; they may have fewer blocks.
absl::StatusOr<std::vector<PagedRegion>> ClientRegions(const Json& request, const char* field,
                                                       const KvCacheShape& shape) {
  if (!request.contains(field)) return std::vector<PagedRegion>{};
  absl::StatusOr<std::vector<PagedRegion>> regions = GetRegions(request, field);
  if (!regions.ok()) return regions.status();
  bool fits = regions->size() == shape.pieces;
  for (const PagedRegion& r : *regions) {
    fits = fits && r.block_bytes == shape.block_bytes && r.count > 0 && r.count <= shape.blocks;
  }
  if (fits) return regions;
  return Invalid("the regions in '", field, "' do not have the shape of the prepared ones");
}

absl::StatusOr<SessionRequest> ParsePrepare(const Json& request, uint64_t max_bytes) {
  const absl::StatusOr<MemoryChoice> memory = ParseMemoryChoice(GetString(request, "memory"));
  if (!memory.ok()) return memory.status();
  Numbers fields(request);
  SessionRequest parsed;
  parsed.shape = {.pieces = static_cast<uint32_t>(fields.Number("pieces", 1, kMaxPieces)),
                  .block_bytes = fields.Number("block_bytes", 1, UINT64_MAX),
                  .blocks = static_cast<uint32_t>(fields.Number("blocks", 1, UINT32_MAX)),
                  .memory = *memory};
  if (!fields.status().ok()) return fields.status();
  const KvCacheShape& shape = parsed.shape;
  const bool countable = shape.block_bytes <= UINT64_MAX / 2 / shape.pieces / shape.blocks;
  if (!countable || SessionBytes(shape) > max_bytes) {
    return Invalid(shape.blocks, " blocks of ", FormatBytes(shape.block_bytes), " in each of ",
                   shape.pieces, " regions, with guards and ids, exceed the ",
                   FormatBytes(max_bytes),
                   " that a session may have; use less memory, or raise --max-session-bytes of the "
                   "server");
  }
  for (auto [field, regions] : {std::pair("answer", &parsed.answer), {"drive", &parsed.drive}}) {
    absl::StatusOr<std::vector<PagedRegion>> given = ClientRegions(request, field, shape);
    if (!given.ok()) return given.status();
    *regions = std::move(*given);
  }
  return parsed;
}

}  // namespace

uint64_t SessionBytes(const KvCacheShape& shape) {
  return shape.bytes() + shape.pieces * 2 * kOuterGuard + shape.blocks * kIdBytes;
}

absl::StatusOr<Json> PeerService::Prepare(Session& session, const Json& request) {
  absl::StatusOr<SessionRequest> parsed = ParsePrepare(request, max_session_bytes_);
  if (!parsed.ok()) return parsed.status();
  if (absl::Status status = Forget(session); !status.ok()) return status;
  absl::StatusOr<KvCache> cache = KvCache::Create(parsed->shape);
  if (!cache.ok()) return cache.status();
  {
    // Moving a KvCache does not move its memory.
    const std::lock_guard lock(mutex_);
    session.cache = std::move(*cache);
    session.answer = std::move(parsed->answer);
    session.drive = std::move(parsed->drive);
  }
  const auto regions = session.cache.RegisterWith(*agent_, Access::kReadWrite);
  if (!regions.ok()) return regions.status();
  session.regions = *regions;
  return Json{{"session", session.id}, {"regions", ToJson(session.cache.regions())}};
}

// Orders this thread's writes to the cache before later transfers, within this process: the call
// into the agent does that. The answer to the client goes over a socket, which orders nothing
// between threads.
absl::StatusOr<Json> PeerService::HandedOver() const {
  if (auto metadata = agent_->Metadata(); !metadata.ok()) return metadata.status();
  return Json::object();
}

absl::StatusOr<Json> PeerService::Content(Session& session, const std::string& type,
                                          const Json& request) {
  if (type != "clear" && type != "fill" && type != "check") {
    return absl::UnimplementedError(
        absl::StrCat("unknown request '", type, "'; are both sides the same version of kvxfer?"));
  }
  const KvCache& cache = session.cache;
  if (cache.regions().empty()) return absl::FailedPreconditionError("prepare first");
  if (type == "clear") {
    if (absl::Status s = cache.Clear(); !s.ok()) return s;
    return HandedOver();
  }
  const uint32_t blocks = cache.shape().blocks;
  Numbers fields(request);
  const uint64_t first = fields.Number("first", 0, blocks);
  const uint64_t streams = fields.Number("streams", 1, blocks);
  const uint64_t each = fields.Number("request_blocks", 1, blocks / streams);
  const uint64_t content = fields.Number("content", 0, UINT32_MAX - streams);
  const uint64_t seed = fields.Number("seed", 0, UINT64_MAX);
  if (!fields.status().ok()) return fields.status();
  if (each * streams > blocks - first) {
    return Invalid(streams, " streams of ", each, " blocks from ", first, " do not fit ", blocks);
  }
  const std::vector<uint32_t> ids = Permutation(blocks, TargetSeed(seed));
  const auto part = std::span(ids).subspan(first, streams * each);
  absl::Status status =
      cache.FillOrCheck(type == "fill", static_cast<uint32_t>(content), streams, part, seed);
  if (!status.ok()) return status;
  if (type == "fill") return HandedOver();
  if (absl::Status s = cache.CheckGuards(); !s.ok()) return s;
  return Json::object();
}

// The client is the target: prepare named its regions.
absl::StatusOr<Json> PeerService::Drive(Session& session, const Json& request) {
  if (session.drive.empty()) return absl::FailedPreconditionError("prepare with 'drive' first");
  Numbers fields(request);
  const auto threads = static_cast<uint32_t>(fields.Number("threads", 1, kMaxDriveThreads));
  const auto blocks = static_cast<uint32_t>(fields.Number("request_blocks", 1, UINT32_MAX));
  const auto first = static_cast<uint32_t>(fields.Number("first", 0, UINT32_MAX));
  const auto remote_first = static_cast<uint32_t>(fields.Number("remote_first", 0, UINT32_MAX));
  const uint64_t seed = fields.Number("seed", 0, UINT64_MAX);
  const uint64_t timeout =
      fields.Number("timeout_ns", 1, static_cast<uint64_t>(Duration(kLongestRun).count()));
  if (!fields.status().ok()) return fields.status();
  absl::StatusOr<LoopSpec> loop = LoopSpecFromJson(request.value("loop", Json::object()));
  if (!loop.ok()) return loop.status();
  if (loop->duration > kLongestRun) {
    return Invalid("a run may take at most an hour");
  }
  // Without a common clock, the client begins as soon as it has sent this request.
  if (!session.same_clock) loop->start_ns = 0;
  const DriveLink link{.peer = session.peer, .remote = session.drive};
  const std::span<const DriveLink> links(&link, 1);
  const absl::StatusOr<FixedRequests> requests = FixedRequests::Make(
      session.cache, links, threads, {.seed = TargetSeed(seed), .first = first, .blocks = blocks},
      {.seed = InitiatorSeed(seed), .first = remote_first, .blocks = blocks});
  if (!requests.ok()) return requests.status();
  const Mover mover(*agent_, links, GetString(request, "op") != "read",
                    Duration(static_cast<int64_t>(timeout)));
  FixedSource source(*requests, *loop);
  const absl::StatusOr<LoopResult> result = RunLoop(
      *loop, requests->streams(), 1, source,
      [&mover](size_t stream, const Request& r) { return mover.Move(stream, r); }, nullptr);
  if (!result.ok()) return result.status();
  return FieldsToJson(*result);
}

Json PeerService::Report(Session& session) {
  const std::lock_guard lock(mutex_);
  return ToJson(TargetReport{.process = absl::StrCat(BootId(), "/", getpid()),
                             .cpu_seconds = CpuSeconds(),
                             .rss_bytes = RssBytes(),
                             .notifications = std::exchange(session.notifications, 0),
                             .notified = std::exchange(session.notified, {}),
                             .arrivals = std::exchange(session.arrivals, {})});
}

// Frees the session's memory. An error: something may still touch it, and it stays.
absl::Status PeerService::Forget(Session& session) {
  while (!session.regions.empty()) {
    absl::Status status = agent_->DeregisterMemory(session.regions.back());
    if (!status.ok()) return status;
    session.regions.pop_back();
  }
  const std::lock_guard lock(mutex_);
  session.cache = KvCache();
  session.answer.clear();
  session.drive.clear();
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
