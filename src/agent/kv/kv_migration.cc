#include "kvxfer/kv_migration.h"

#include <algorithm>
#include <utility>

#include "src/agent/engine/progress_loop.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// A migration is many transfers, so a user word would come many times.
KvOptions WithoutWord(KvOptions options) {
  options.transfer.user_word.reset();
  return options;
}

}  // namespace

KvMigration::KvMigration(Agent* agent, std::vector<std::string> group, RequestName request,
                         KvOptions options)
    : agent_(agent),
      group_(std::move(group)),
      request_(std::move(request)),
      options_(WithoutWord(std::move(options))) {}

KvMigration::~KvMigration() {
  for (const Transfer& transfer : under_way_) transfer.Cancel();
}

absl::Status KvMigration::Error() const {
  return Annotate(error_, absl::StrCat("moving request ", request_.text));
}

absl::Status KvMigration::Send(const KvBlocks& blocks, uint64_t from, const KvOptions& options) {
  KvBlocks rest = blocks;
  rest.local_first_token += from;
  rest.remote_first_token += from;
  rest.tokens -= from;
  auto transfer = agent_->WriteBlocks(group_, rest, options);
  if (!transfer.ok()) {
    error_ = transfer.status();
    return Error();
  }
  under_way_.push_back(*std::move(transfer));
  return absl::OkStatus();
}

// Drops transfers that have ended. The first error stays: what a failed transfer was to write is
// missing from then on.
absl::Status KvMigration::DropDone() {
  std::erase_if(under_way_, [&](const Transfer& transfer) {
    if (transfer.Poll() == TransferState::kActive) return false;
    error_.Update(transfer.status());
    bytes_ += transfer.stats().bytes;
    return true;
  });
  return Error();
}

absl::Status KvMigration::Copy(const KvBlocks& blocks) {
  if (absl::Status status = DropDone(); !status.ok()) return status;
  if (blocks.tokens <= sent_) return absl::OkStatus();
  // Without a request name: the target is notified of the rest only, which every rank sends after
  // these parts have arrived.
  KvOptions options = options_;
  options.request = {};
  options.transfer.notification.reset();
  const uint64_t from = std::exchange(sent_, blocks.tokens);
  return Send(blocks, from, options);
}

bool KvMigration::CaughtUp() const {
  return std::ranges::none_of(under_way_, [](const Transfer& transfer) {
    return transfer.Poll() == TransferState::kActive;
  });
}

absl::StatusOr<KvMigration::Switched> KvMigration::Switch(const KvBlocks& blocks,
                                                          std::optional<std::string> notification,
                                                          Duration timeout) {
  const Time begun = Now();
  const Time end = After(timeout);
  if (blocks.tokens == 0 || blocks.tokens < sent_) {
    return absl::InvalidArgumentError(absl::StrCat("moving request ", request_.text, ": it has ",
                                                   blocks.tokens, " tokens, of which ", sent_,
                                                   " were sent"));
  }
  for (const Transfer& transfer : under_way_) {
    const absl::Status waited = transfer.Wait(end - Now());
    // The migration ends with this error: its time-out is a deadline.
    error_.Update(IsTimedOut(waited) ? absl::DeadlineExceededError(waited.message()) : waited);
  }
  if (absl::Status status = DropDone(); !status.ok()) return status;
  KvOptions options = options_;
  options.request = request_;
  options.transfer.notification = std::move(notification);
  // The transfer's own end is awaited below: only then is it known whether the target was notified.
  options.transfer.deadline =
      std::clamp<Duration>(end - Now(), Duration(1), options.transfer.deadline);
  const uint64_t before = bytes_;
  // At least the last token is sent, again if need be: the notification needs a transfer that
  // carries it.
  const uint64_t from = std::min(std::exchange(sent_, blocks.tokens), blocks.tokens - 1);
  if (absl::Status status = Send(blocks, from, options); !status.ok()) return status;
  const Transfer rest = under_way_.back();
  (void)rest.Wait(Duration::max());
  const Duration pause = Now() - begun;
  if (absl::Status status = DropDone(); !status.ok()) return status;
  const TransferStats stats = rest.stats();
  return Switched{.pause = pause,
                  .bytes = stats.bytes,
                  .before = before,
                  .tokens = blocks.tokens,
                  .path = stats.path};
}

}  // namespace kvxfer
