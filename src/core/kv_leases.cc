#include "src/core/kv_leases.h"

#include <algorithm>
#include <utility>

#include "src/core/strings.h"

namespace kvxfer {
namespace {

absl::Status About(std::string_view name, const absl::Status& status) {
  return Annotate(status, absl::StrCat("KV lease ", ToAbsl(name)));
}

}  // namespace

absl::Status KvLeases::Grant(std::string_view name, uint64_t blocks_hash, Time expires) {
  if (auto status = CheckName("KV lease", name); !status.ok()) return status;
  if (leases_.contains(name)) {
    return About(name, absl::AlreadyExistsError("was granted before; use another name"));
  }
  const auto id = book_.Grant(expires);
  if (!id.ok()) return About(name, id.status());
  const auto at =
      leases_.emplace(std::string(name), Lease{.id = *id, .blocks_hash = blocks_hash}).first;
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

absl::Status KvLeases::Begin(std::string_view name, uint64_t blocks_hash, Reader reader,
                             uint64_t fetch, Duration within, Time now) {
  const auto lease = Find(name);
  if (!lease.ok()) return About(name, lease.status());
  if ((*lease)->blocks_hash != blocks_hash) {
    return About(name, absl::InvalidArgumentError("these are not the blocks that it holds"));
  }
  const Duration longest = std::clamp(within, Duration::zero(), kLongestFetch);
  return About(name, book_.Begin((*lease)->id, reader, fetch, now + longest, now));
}

absl::Status KvLeases::Finish(std::string_view name, Reader reader, uint64_t fetch,
                              uint32_t readers, Time now) {
  const auto lease = Find(name);
  if (!lease.ok()) return About(name, lease.status());
  auto& finished = (*lease)->finished;
  const bool again = std::ranges::find(finished, reader) != finished.end();
  const bool consume = finished.size() + (again ? 0 : 1) >= readers;
  absl::Status status = book_.Finish((*lease)->id, reader, fetch, consume, now);
  if (status.ok() && !again) finished.push_back(reader);
  return About(name, status);
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
