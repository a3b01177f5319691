#include "kvxfer/kv_migration.h"

#include <algorithm>
#include <utility>

#include "src/core/clock.h"
#include "src/core/strings.h"

namespace kvxfer {

KvMigration::KvMigration(Agent* agent, std::vector<std::string> group, std::string request,
                         KvOptions options)
    : agent_(agent),
      group_(std::move(group)),
      request_(std::move(request)),
      options_(std::move(options)) {}

KvMigration::~KvMigration() {
  for (const Transfer& transfer : under_way_) transfer.Cancel();
}

absl::StatusOr<Transfer> KvMigration::Send(const KvBlocks& blocks, uint64_t from, std::string name,
                                           std::optional<std::string> notification) {
  KvBlocks rest = blocks;
  rest.local_first_token += from;
  rest.remote_first_token += from;
  rest.tokens -= from;
  KvOptions options = options_;
  options.request = std::move(name);
  options.notification = std::move(notification);
  return agent_->WriteBlocks(group_, rest, options);
}

// The first error of what has ended.
absl::Status KvMigration::DropDone() {
  absl::Status status;
  std::erase_if(under_way_, [&](const Transfer& transfer) {
    if (transfer.Poll() == TransferState::kActive) return false;
    status.Update(transfer.status());
    bytes_ += transfer.stats().bytes;
    return true;
  });
  return Annotate(status, absl::StrCat("moving request ", request_));
}

absl::Status KvMigration::Copy(const KvBlocks& blocks) {
  if (absl::Status status = DropDone(); !status.ok()) return status;
  if (blocks.tokens <= sent_) return absl::OkStatus();
  // Without a name: the target hears of the rest, which every rank sends after this has arrived.
  auto piece = Send(blocks, sent_, "", std::nullopt);
  if (!piece.ok()) return piece.status();
  under_way_.push_back(*std::move(piece));
  sent_ = blocks.tokens;
  return absl::OkStatus();
}

bool KvMigration::CaughtUp() const {
  return std::ranges::all_of(
      under_way_, [](const Transfer& transfer) { return transfer.Poll() == TransferState::kDone; });
}

absl::StatusOr<KvMigration::Switched> KvMigration::Switch(const KvBlocks& blocks,
                                                          std::optional<std::string> notification,
                                                          Duration timeout) {
  const Time begun = Now();
  if (blocks.tokens == 0 || blocks.tokens < sent_) {
    return absl::InvalidArgumentError(absl::StrCat("moving request ", request_, ": it has ",
                                                   blocks.tokens, " tokens, of which ", sent_,
                                                   " were sent"));
  }
  for (const Transfer& transfer : under_way_) {
    absl::Status status = transfer.Wait(begun + timeout - Now());
    if (!status.ok()) return Annotate(status, absl::StrCat("moving request ", request_));
    bytes_ += transfer.stats().bytes;
  }
  under_way_.clear();
  // There is something to tell of, even where everything was sent before.
  auto rest = Send(blocks, std::min(sent_, blocks.tokens - 1), request_, std::move(notification));
  if (!rest.ok()) return rest.status();
  under_way_.push_back(*rest);
  absl::Status status = rest->Wait(begun + timeout - Now());
  if (!status.ok()) return Annotate(status, absl::StrCat("moving request ", request_));
  under_way_.clear();
  sent_ = blocks.tokens;
  const Duration pause = Now() - begun;
  const TransferStats stats = rest->stats();
  return Switched{.pause = pause,
                  .bytes = stats.bytes,
                  .before = bytes_,
                  .tokens = blocks.tokens,
                  .path = stats.path};
}

}  // namespace kvxfer
