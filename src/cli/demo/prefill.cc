#include "src/cli/demo/prefill.h"

#include <utility>

#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {

Prefill::Prefill(const DemoConfig& config, Agent& agent, const KvCache& cache,
                 uint32_t cache_blocks, std::string peer, std::vector<PagedRegion> remote)
    : config_(config),
      agent_(agent),
      cache_(cache),
      peer_(std::move(peer)),
      remote_(std::move(remote)),
      allocator_(cache_blocks, InitiatorSeed(config.seed)),
      results_(config.requests) {}

absl::Status Prefill::Run(const std::function<absl::Status()>& alive,
                          const std::function<void(size_t)>& progress) {
  // The decode side answers each request, so that a long silence means trouble.
  Time last_step = Now();
  while (released_ < config_.requests || !active_.empty()) {
    const size_t released_before = released_;
    absl::StatusOr<Notification> notification =
        agent_.WaitNotification(std::chrono::milliseconds(released_ < config_.requests ? 100 : 1));
    if (notification.ok()) {
      last_step = Now();
      if (absl::Status s = OnMessage(*notification); !s.ok()) return s;
    } else if (!absl::IsDeadlineExceeded(notification.status())) {
      return notification.status();
    }
    if (absl::Status s = CollectEnded(); !s.ok()) return s;
    if (absl::Status s = StartAssigned(); !s.ok()) return s;
    if (released_ != released_before) progress(released_);
    if (notification.ok()) continue;
    if (absl::Status s = alive(); !s.ok()) return s;
    if (Now() - last_step > config_.timeout) {
      return absl::DeadlineExceededError(absl::StrCat(
          "no message from ", peer_, " after ", released_, " of ", config_.requests, " requests"));
    }
  }
  return absl::OkStatus();
}

absl::Status Prefill::OnMessage(const Notification& notification) {
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

absl::Status Prefill::StartAssigned() {
  while (!assigned_.empty()) {
    std::optional<std::vector<uint32_t>> blocks = allocator_.Allocate(config_.blocks_per_request());
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

absl::Status Prefill::Start(const DemoMessage& assigned, std::vector<uint32_t> blocks) {
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
absl::Status Prefill::CollectEnded() {
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

}  // namespace kvxfer::cli
