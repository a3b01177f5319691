// Moves a running request to another instance while this one still adds tokens to it: what there
// is, what was added meanwhile, and at last the rest, while the request rests. Every rank of this
// instance has one and calls the same.
//
// What was copied must not change any more: a token's K and V do not, once they are written.
//
// Thread-safety: one thread at a time. The agent outlives it.
//
// Example, on each rank of decode A:
//   KvMigration move(agent, ranks_of_b, "request 7, moved");
//   move.Copy({.cache = "kv", .local_ids = mine, .remote_ids = theirs, .tokens = so_far});
//   ... goes on decoding; when move.CaughtUp(), or again and again with what was added ...
//   auto done = move.Switch({... .tokens = all}, last_token, std::chrono::seconds(5));
// and on each rank of decode B: a Notification with request == "request 7, moved".

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
  // `request`: as KvOptions::request, for this attempt; of `options` the request and the
  // notification are not used.
  KvMigration(Agent* agent, std::vector<std::string> group, std::string request,
              KvOptions options = {});
  // Cancels what is under way.
  ~KvMigration();
  KvMigration(const KvMigration&) = delete;
  KvMigration& operator=(const KvMigration&) = delete;

  // Sends those of the first `blocks.tokens` tokens that were not sent before, all layers, and does
  // not wait. The ids are those of all of these tokens, from the first one on, as in the calls
  // before; there may be more of them by now. An error, of this call or of what was sent before,
  // ends the migration, and is what every later call returns: begin another, with another name.
  absl::Status Copy(const KvBlocks& blocks);
  // Nothing is on its way any more: all that was sent has arrived, or some of it failed, as Copy
  // and Switch say then.
  bool CaughtUp() const;

  struct Switched {
    Duration pause{};     // from the call of Switch until everything was there
    uint64_t bytes = 0;   // sent in it by this rank
    uint64_t before = 0;  // bytes, sent before it by this rank
    uint64_t tokens = 0;  // of the request, that it was about
    std::string path{};   // backend that carried the rest, e.g. "tcp"
  };
  // The request rests: waits for what was sent, sends the rest, and waits until that is there. The
  // target is told, with `notification`, when every rank's rest is there. Errors as Copy;
  // DeadlineExceeded after `timeout`, with nothing of it on its way any more. After an error ranks
  // of the target may have been told all the same: settle with them before the request goes on
  // here.
  absl::StatusOr<Switched> Switch(const KvBlocks& blocks, std::optional<std::string> notification,
                                  Duration timeout);

 private:
  absl::Status Send(const KvBlocks& blocks, uint64_t from, const KvOptions& options);
  absl::Status Error() const;
  absl::Status DropDone();

  Agent* const agent_;
  const std::vector<std::string> group_;
  const std::string request_;
  const KvOptions options_;
  std::vector<Transfer> under_way_;
  uint64_t sent_ = 0;   // tokens
  uint64_t bytes_ = 0;  // of what has arrived
  absl::Status error_;  // the first one
};

}  // namespace kvxfer

#endif  // KVXFER_KV_MIGRATION_H_
