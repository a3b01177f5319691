// Moves a running request to another instance while this instance still adds tokens to it. Copies
// first send the tokens that exist, then those that were added meanwhile. A final Switch sends the
// rest while the request is paused. Every rank of this instance has one KvMigration and makes the
// same calls.
//
// The bytes of a copied token must not change afterwards. K and V of a token do not change once
// they have been written.
//
// Thread-safety: one thread at a time. Lifetime: the agent must outlive the KvMigration.
//
// Example, on each rank of decode A:
//   KvMigration move(agent, ranks_of_b, RequestName("request 7, moved"));
//   move.Copy({.cache = CacheName("kv"), .local_ids = mine, .remote_ids = theirs,
//              .tokens = so_far});
//   ... goes on decoding; when move.CaughtUp(), or again and again with what was added ...
//   auto done = move.Switch({... .tokens = all}, last_token, std::chrono::seconds(5));
// and on each rank of decode B: a Notification with request == RequestName("request 7, moved").

#ifndef KVXFER_KV_MIGRATION_H_
#define KVXFER_KV_MIGRATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"

namespace kvxfer {

class KvMigration {
 public:
  // `request`: as KvOptions::request, a name for this attempt. The request, the notification and
  // the user word in `options` are ignored.
  KvMigration(Agent* agent, std::vector<std::string> group, RequestName request,
              KvOptions options = {});
  // Cancels the transfers in progress.
  ~KvMigration();
  KvMigration(const KvMigration&) = delete;
  KvMigration& operator=(const KvMigration&) = delete;

  // Starts sending those of the first `blocks.tokens` tokens that were not sent before, for all
  // layers, and does not wait. The ids are those of all these tokens, from the first one on; each
  // call gives the ids of the call before, and may append more. An error of this call, or of a
  // transfer that an earlier call started, ends the migration: every later call returns that error.
  // Begin another migration with another name.
  absl::Status Copy(const KvBlocks& blocks);
  // True if nothing is in flight: everything that was sent has arrived, or some of it failed, which
  // the next Copy or Switch returns.
  bool CaughtUp() const;

  struct Switched {
    Duration pause{};     // from the call of Switch until all data has arrived
    uint64_t bytes = 0;   // sent by this rank during the pause
    uint64_t before = 0;  // bytes sent by this rank before the pause
    uint64_t tokens = 0;  // tokens of the request that were moved
    std::string path{};   // the backend that moved the rest, e.g. "tcp"
  };
  // Moves the rest while the request is paused: waits for what was sent before, sends the rest, and
  // waits until that has arrived. The target's application gets its notification, with
  // `notification` as payload, when the rest of every rank has arrived. Errors as for Copy;
  // DeadlineExceeded: not within `timeout`, and nothing of the rest is in flight any more. After an
  // error, some ranks of the target may have got the notification all the same: agree with them
  // before this instance continues the request.
  absl::StatusOr<Switched> Switch(const KvBlocks& blocks, std::optional<std::string> notification,
                                  Duration timeout);

 private:
  absl::Status Send(const KvBlocks& blocks, uint64_t from, const KvOptions& options);
  absl::Status Error() const;
  absl::Status DropDone();

  Agent* const agent_;
  const std::vector<std::string> group_;
  const RequestName request_;
  const KvOptions options_;
  std::vector<Transfer> under_way_;
  uint64_t sent_ = 0;   // tokens
  uint64_t bytes_ = 0;  // that have arrived
  absl::Status error_;  // the first one
};

}  // namespace kvxfer

#endif  // KVXFER_KV_MIGRATION_H_
