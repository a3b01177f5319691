#include "src/cli/bench_drive.h"

#include "absl/strings/str_cat.h"
#include "src/cli/scatter.h"
#include "src/cli/session_note.h"
#include "src/cli/stats.h"

namespace kvxfer::cli {
namespace {

absl::Status CheckShare(const BlockShare& share, uint64_t streams, uint64_t blocks) {
  if (share.blocks > 0 && streams > 0 && share.first <= blocks &&
      share.blocks <= (blocks - share.first) / streams) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(streams, " streams of ", share.blocks,
                                                 " blocks do not fit a cache of ", blocks));
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
      return absl::InvalidArgumentError("the caches of a run must be alike");
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

absl::Status Mover::Move(const Request& request) const {
  // A trace's request of which the target has everything: only the notification.
  const DriveLink& link = links_[request.target];
  TransferOptions options;
  options.deadline = timeout_;
  std::string note =
      SessionNote{.session = link.session, .posted_ns = MonotonicNanoseconds()}.Encode();
  absl::StatusOr<Transfer> transfer;
  if (request.local_ids.empty()) {
    transfer = agent_.Notify(link.peer, std::move(note), options);
  } else {
    options.notification = std::move(note);
    const PagedBlocks blocks{.local = request.local,
                             .remote = request.remote,
                             .local_ids = request.local_ids,
                             .remote_ids = request.remote_ids};
    transfer =
        write_ ? agent_.Write(link.peer, blocks, options) : agent_.Read(link.peer, blocks, options);
  }
  if (!transfer.ok()) return transfer.status();
  return transfer->Wait(timeout_);
}

}  // namespace kvxfer::cli
