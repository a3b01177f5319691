// The prefill side of `kvxfer demo`: makes the KV cache of each request and writes it to the decode
// side.

#include <deque>
#include <functional>
#include <utility>

#include "src/cli/common/kv_cache.h"
#include "src/cli/demo/demo.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

// Thread-safety: one thread. The agent and the cache must outlive it.
class Prefill {
 public:
  Prefill(const DemoConfig& config, Agent& agent, const KvCache& cache, std::string peer,
          std::vector<PagedRegion> remote)
      : config_(config),
        agent_(agent),
        cache_(cache),
        peer_(std::move(peer)),
        remote_(std::move(remote)),
        allocator_(cache.shape().blocks, InitiatorSeed(config.seed)),
        results_(config.requests) {}

  absl::Status Run(const std::function<absl::Status()>& alive,
                   const std::function<void(size_t)>& progress) {
    // The decode side answers each request, so that a long silence means trouble.
    Time last_step = Now();
    while (released_ < config_.requests || !active_.empty()) {
      const size_t released_before = released_;
      absl::StatusOr<Notification> notification = agent_.WaitNotification(
          std::chrono::milliseconds(released_ < config_.requests ? 100 : 1));
      if (notification.ok()) {
        last_step = Now();
        if (absl::Status s = OnMessage(*notification); !s.ok()) return s;
      } else if (!IsTimedOut(notification.status())) {
        return notification.status();
      }
      if (absl::Status s = CollectEnded(); !s.ok()) return s;
      if (absl::Status s = StartAssigned(); !s.ok()) return s;
      if (released_ != released_before) progress(released_);
      if (notification.ok()) continue;
      if (absl::Status s = alive(); !s.ok()) return s;
      if (Now() - last_step > config_.timeout) {
        return absl::DeadlineExceededError(absl::StrCat("no message from ", peer_, " after ",
                                                        released_, " of ", config_.requests,
                                                        " requests"));
      }
    }
    return absl::OkStatus();
  }

  const std::vector<DemoResult>& results() const { return results_; }

 private:
  // A request in flight. Its `blocks` return to the allocator when the transfer has ended.
  struct Active {
    uint32_t request;
    std::vector<uint32_t> blocks;
    Transfer transfer;
  };

  absl::Status OnMessage(const Notification& notification) {
    absl::StatusOr<DemoMessage> message = DemoMessage::Decode(notification.payload);
    if (!message.ok()) return message.status();
    if (message->request >= results_.size()) {
      return absl::InternalError(absl::StrCat(peer_, " names unknown request ", message->request));
    }
    if (message->kind == DemoMessage::Kind::kAssign) {
      assigned_.push_back(std::move(*message));
      return absl::OkStatus();
    }
    DemoResult& result = results_[message->request];
    if (result.released) {
      return absl::InternalError(
          absl::StrCat(peer_, " released request ", message->request, " twice"));
    }
    result.released = true;
    result.error = message->error;
    ++released_;
    return absl::OkStatus();
  }

  absl::Status StartAssigned() {
    while (!assigned_.empty()) {
      std::optional<std::vector<uint32_t>> blocks =
          allocator_.Allocate(config_.blocks_per_request());
      if (!blocks) {
        // The blocks of the oldest transfer are free when it has ended.
        absl::Status ended = active_.front().transfer.Wait(config_.timeout);
        if (!ended.ok()) return ended;
        if (absl::Status s = CollectEnded(); !s.ok()) return s;
        continue;
      }
      const DemoMessage assigned = std::move(assigned_.front());
      assigned_.pop_front();
      if (absl::Status s = Start(assigned, std::move(*blocks)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Start(const DemoMessage& assigned, std::vector<uint32_t> blocks) {
    absl::Status filled = cache_.FillRequest(assigned.request, blocks, config_.seed);
    if (!filled.ok()) return filled;
    if (config_.corrupt && assigned.request == config_.requests / 2) {
      filled = cache_.Corrupt(config_.model.pieces() / 2, blocks.back(), config_.block_bytes() - 1);
      if (!filled.ok()) return filled;
    }
    // The decode side compares this table with the one that it assigned.
    DemoMessage arrived = assigned;
    arrived.kind = DemoMessage::Kind::kArrived;
    TransferOptions options;
    options.notification = arrived.Encode();
    options.deadline = config_.timeout;
    absl::StatusOr<Transfer> transfer = agent_.Write(peer_,
                                                     PagedBlocks{.local = cache_.regions(),
                                                                 .remote = remote_,
                                                                 .local_ids = blocks,
                                                                 .remote_ids = assigned.blocks},
                                                     options);
    if (!transfer.ok()) return transfer.status();
    results_[assigned.request].runs =
        config_.model.pieces() *
        (config_.gap == 0 ? CountRuns(blocks, assigned.blocks) : blocks.size());
    active_.push_back({assigned.request, std::move(blocks), std::move(*transfer)});
    return absl::OkStatus();
  }

  // In the order of posting: a transfer that ends before an older one keeps its blocks a little
  // longer.
  absl::Status CollectEnded() {
    while (!active_.empty() && active_.front().transfer.Poll() != TransferState::kActive) {
      const Active& ended = active_.front();
      if (absl::Status s = ended.transfer.status(); !s.ok()) {
        return Annotate(s, absl::StrCat("request ", ended.request).c_str());
      }
      results_[ended.request].stats = ended.transfer.stats();
      allocator_.Free(ended.blocks);
      active_.pop_front();
    }
    return absl::OkStatus();
  }

  const DemoConfig& config_;
  Agent& agent_;
  const KvCache& cache_;
  const std::string peer_;
  const std::vector<PagedRegion> remote_;
  BlockAllocator allocator_;
  std::deque<DemoMessage> assigned_;  // requests with blocks on the decode side, but not yet here
  std::deque<Active> active_;         // in the order of posting
  std::vector<DemoResult> results_;   // by request
  size_t released_ = 0;               // of results_
};

}  // namespace

absl::StatusOr<std::vector<DemoResult>> RunPrefill(const DemoConfig& config, Agent& agent,
                                                   const KvCache& cache, const std::string& peer,
                                                   std::vector<PagedRegion> remote,
                                                   const std::function<absl::Status()>& alive,
                                                   const std::function<void(size_t)>& progress) {
  Prefill prefill(config, agent, cache, peer, std::move(remote));
  if (absl::Status s = prefill.Run(alive, progress); !s.ok()) return s;
  return prefill.results();
}

}  // namespace kvxfer::cli
