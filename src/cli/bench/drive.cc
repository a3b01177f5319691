#include "src/cli/bench/drive.h"

#include <algorithm>

#include "src/cli/common/kv_cache.h"
#include "src/cli/common/stats.h"

namespace kvxfer::cli {
namespace {

absl::Status CheckShare(const BlockShare& share, uint64_t streams, uint64_t blocks) {
  if (share.blocks > 0 && streams > 0 && share.first <= blocks &&
      share.blocks <= (blocks - share.first) / streams) {
    return absl::OkStatus();
  }
  return Invalid(streams, " streams of ", share.blocks, " blocks do not fit a cache of ", blocks);
}

}  // namespace

absl::StatusOr<FixedRequests> FixedRequests::Make(const KvCache& cache,
                                                  std::span<const DriveLink> links,
                                                  uint32_t threads, const BlockShare& local,
                                                  const BlockShare& remote) {
  FixedRequests requests;
  requests.streams_ = links.size() * threads;
  requests.threads_ = threads;
  requests.blocks_ = local.blocks;
  requests.local_ = cache.regions();
  const uint32_t here = cache.shape().blocks;
  if (absl::Status s = CheckShare(local, requests.streams_, here); !s.ok()) return s;
  for (const DriveLink& link : links) {
    const uint64_t there = link.remote.empty() ? 0 : link.remote[0].count;
    if (absl::Status s = CheckShare(remote, threads, there); !s.ok()) return s;
    if (there != links[0].remote[0].count || there > UINT32_MAX || local.blocks != remote.blocks) {
      return Invalid("the caches of a run must have the same shape");
    }
    requests.remote_.emplace_back(link.remote);
  }
  requests.local_ids_ = Permutation(here, local.seed);
  requests.local_ids_.erase(requests.local_ids_.begin(), requests.local_ids_.begin() + local.first);
  const auto there = static_cast<uint32_t>(links[0].remote[0].count);
  requests.remote_ids_ = Permutation(there, remote.seed);
  requests.remote_ids_.erase(requests.remote_ids_.begin(),
                             requests.remote_ids_.begin() + remote.first);
  return requests;
}

Request FixedRequests::Of(size_t stream, int64_t due_ns) const {
  const size_t link = stream / threads_;
  const std::span<const uint32_t> local(local_ids_);
  const std::span<const uint32_t> remote(remote_ids_);
  return {.due_ns = due_ns,
          .target = static_cast<uint32_t>(link),
          .local = local_,
          .remote = remote_[link],
          .local_ids = local.subspan(stream * blocks_, blocks_),
          .remote_ids = remote.subspan(stream % threads_ * blocks_, blocks_)};
}

absl::Status Mover::Move(size_t stream, const Request& request) const {
  const uint64_t number = timeline_ == nullptr ? 0 : timeline_->Begin();
  const SessionNote note{.session = links_[request.target].session,
                         .sequence = number,
                         .posted_ns = MonotonicNanoseconds()};
  const absl::StatusOr<Transfer> transfer = Post(request, note);
  if (!transfer.ok()) return transfer.status();
  absl::Status status = transfer->Wait(timeout_);
  if (number != 0) {
    timeline_->Put(number, {.peer = request.target,
                            .thread = static_cast<uint32_t>(stream),
                            .bytes = request.bytes(),
                            .due_ns = request.due_ns,
                            .posted_ns = note.posted_ns,
                            .first_slice_ns = note.posted_ns + transfer->stats().queued.count(),
                            .ended_ns = MonotonicNanoseconds()});
  }
  return status;
}

absl::StatusOr<Transfer> Mover::Post(const Request& request, const SessionNote& note) const {
  const std::string& peer = links_[request.target].peer;
  TransferOptions options;
  options.deadline = timeout_;
  // The target has every block of this request of a trace: send only the notification.
  if (request.local_ids.empty()) return agent_.Notify(peer, note.Encode(), options);
  options.notification = note.Encode();
  const PagedBlocks blocks{.local = request.local,
                           .remote = request.remote,
                           .local_ids = request.local_ids,
                           .remote_ids = request.remote_ids};
  return write_ ? agent_.Write(peer, blocks, options) : agent_.Read(peer, blocks, options);
}

template <typename Io>
void Fields(Io& io, JsonRef<Io, BenchCase> bench) {
  io("targets", bench.targets);
  io("backend", bench.backend);
  io("listen", bench.listen);
  io("memory", bench.memory.here);
  io("memory_target", bench.memory.there);
  io("write", bench.write);
  io("latency", bench.latency);
  io("by_message", bench.by_message);
  io("bidirectional", bench.bidirectional);
  io("threads", bench.threads);
  io("pieces", bench.pieces);
  io("block_bytes", bench.block_bytes);
  io("request_blocks", bench.request_blocks);
  io("cache_blocks", bench.cache_blocks);
  io("seed", bench.seed);
  io("timeout_ns", bench.timeout);
}

KvCacheShape BenchCase::Shape(uint64_t share, const MemoryChoice& of_side) const {
  const uint64_t blocks = std::max(cache_blocks, share * (bidirectional ? 2 : 1));
  return {.pieces = static_cast<uint32_t>(pieces),
          .block_bytes = block_bytes,
          .blocks = static_cast<uint32_t>(blocks),
          .memory = of_side};
}

absl::Status CheckCase(const BenchCase& c) {
  // The interface allows 2^32 ids, the address space 2^47 bytes.
  const unsigned __int128 ids =
      static_cast<unsigned __int128>(c.request_blocks) * c.streams() * (c.bidirectional ? 2 : 1);
  const unsigned __int128 blocks = std::max<unsigned __int128>(ids, c.cache_blocks);
  if (blocks == 0 || blocks > UINT32_MAX) {
    return Invalid(
        "a run must have from 1 to 2^32 - 1 blocks in each region; choose larger or fewer blocks");
  }
  const auto block = static_cast<unsigned __int128>(c.block_bytes);
  if (block * c.pieces * blocks > uint64_t{1} << 47) {
    return Invalid("a run cannot use more than 2^47 bytes of memory");
  }
  return absl::OkStatus();
}

Json ToJson(const BenchCase& bench) { return FieldsToJson(bench); }

absl::StatusOr<BenchCase> BenchCaseFromJson(const Json& json) {
  absl::StatusOr<BenchCase> bench = FromJson<BenchCase>(json);
  if (!bench.ok()) return bench;
  if (absl::Status s = CheckCase(*bench); !s.ok()) return s;
  return bench;
}

}  // namespace kvxfer::cli
