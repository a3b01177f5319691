#include "src/core/kv/kv_leases.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"
#include "src/core/kv/lease_refusal.h"

namespace kvxfer {
namespace {

absl::Status About(std::string_view name, const absl::Status& status) {
  return Annotate(status, absl::StrCat("KV lease ", ToAbsl(name)));
}

// Adds the refusal code to the status of a fetch that the book refused or that has no lease.
absl::Status Refuse(std::string_view name, const absl::Status& status) {
  if (status.ok()) return status;
  KvLeaseRefusal refusal = KvLeaseRefusal::kBusy;
  if (absl::IsNotFound(status)) refusal = KvLeaseRefusal::kUnknown;
  if (absl::IsFailedPrecondition(status)) refusal = KvLeaseRefusal::kEnded;
  return WithRefusal(About(name, status), refusal);
}

}  // namespace

absl::Status KvLeases::Grant(std::string_view name, uint64_t blocks_hash, Time expires,
                             std::string_view contents) {
  if (auto status = CheckName("KV lease", name); !status.ok()) return status;
  if (contents.size() > kMaxNameBytes) {
    return About(name, absl::InvalidArgumentError(
                           absl::StrCat("its contents have ", contents.size(), " bytes; at most ",
                                        kMaxNameBytes, " are taken: say a hash of them")));
  }
  if (leases_.contains(name)) {
    return About(name, absl::AlreadyExistsError("was granted before; use another name"));
  }
  const auto id = book_.Grant(expires);
  if (!id.ok()) return About(name, id.status());
  const auto at =
      leases_
          .emplace(std::string(name),
                   Lease{.id = *id, .blocks_hash = blocks_hash, .contents = std::string(contents)})
          .first;
  // Keys of an unordered_map stay at their address, so names_ and ended_ refer to them.
  names_.emplace(*id, &at->first);
  ++granted_;
  return absl::OkStatus();
}

absl::Status KvLeases::Renew(std::string_view name, Time expires, Time now) {
  const auto lease = Find(name);
  return About(name, lease.ok() ? book_.Renew((*lease)->id, expires, now) : lease.status());
}

absl::Status KvLeases::Release(std::string_view name, Time now) {
  const auto lease = Find(name);
  return About(name, lease.ok() ? book_.Release((*lease)->id, now) : lease.status());
}

absl::Status KvLeases::Revoke(std::string_view name, Time now) {
  const auto lease = Find(name);
  return About(name, lease.ok() ? book_.Revoke((*lease)->id, now) : lease.status());
}

absl::Status KvLeases::Begin(std::string_view name, uint64_t blocks_hash, Reader reader,
                             uint64_t fetch, Duration within, Time now, std::string_view contents) {
  // The name alone finds the lease: a reader that expects other contents gets another refusal than
  // one that came before the grant.
  const auto lease = Find(name);
  if (!lease.ok()) return Refuse(name, lease.status());
  if ((*lease)->contents != contents) {
    return WithRefusal(
        About(name, absl::InvalidArgumentError("it does not hold what the reader wants")),
        KvLeaseRefusal::kOtherContents);
  }
  if ((*lease)->blocks_hash != blocks_hash) {
    return WithRefusal(
        About(name, absl::InvalidArgumentError("these are not the blocks that it holds")),
        KvLeaseRefusal::kOtherBlocks);
  }
  // A reader cannot hold the blocks for longer than kLongestFetch, whatever deadline it states.
  const Duration longest = std::clamp(within, Duration::zero(), kLongestFetch);
  return Refuse(name, book_.Begin((*lease)->id, reader, fetch, now + longest, now));
}

absl::Status KvLeases::Finish(std::string_view name, Reader reader, uint64_t fetch,
                              uint32_t readers, Time now) {
  const auto lease = Find(name);
  if (!lease.ok()) return Refuse(name, lease.status());
  auto& finished = (*lease)->finished;
  // A reader that fetches twice counts once.
  const bool again = std::ranges::find(finished, reader) != finished.end();
  const bool consume = finished.size() + (again ? 0 : 1) >= readers;
  absl::Status status = book_.Finish((*lease)->id, reader, fetch, consume, now);
  if (status.ok() && !again) finished.push_back(reader);
  return Refuse(name, status);
}

void KvLeases::Abandon(std::string_view name, Reader reader, uint64_t fetch, Time now) {
  if (const auto lease = Find(name); lease.ok()) book_.Abandon((*lease)->id, reader, fetch, now);
}

std::vector<std::pair<std::string, KvLeaseEnd>> KvLeases::End(Time now) {
  std::vector<std::pair<std::string, KvLeaseEnd>> ended;
  for (const auto& [id, end] : book_.End(now)) {
    const auto at = names_.find(id);
    ended.emplace_back(*at->second, end);
    ended_.push_back(at->second);
    // The name stays reserved for the last kMaxRemembered ends, so that late readers get kEnded
    // instead of kUnknown.
    names_.erase(at);
    if (ended_.size() <= kMaxRemembered) continue;
    leases_.erase(leases_.find(*ended_.front()));
    ended_.pop_front();
  }
  return ended;
}

absl::StatusOr<KvLeases::Lease*> KvLeases::Find(std::string_view name) {
  const auto at = leases_.find(name);
  if (at == leases_.end()) return absl::NotFoundError("never granted by this agent, or long ago");
  return &at->second;
}

}  // namespace kvxfer
