#include "src/cli/demo/rank.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "src/cli/common/agent_setup.h"
#include "src/cli/common/stats.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr const char* kCache = "kv";

std::string RequestName(uint64_t request) { return absl::StrCat("request ", request); }

}  // namespace

absl::StatusOr<DemoTables> GetTables(const Json& object, const char* field) {
  const auto bad = [field] {
    return absl::InvalidArgumentError(absl::StrCat("'", field, "' is no list of block tables"));
  };
  const auto it = object.find(field);
  if (it == object.end() || !it->is_array()) return bad();
  DemoTables tables;
  for (const Json& list : *it) {
    if (!list.is_array()) return bad();
    tables.emplace_back();
    for (const Json& id : list) {
      if (!id.is_number_unsigned()) return bad();
      tables.back().push_back(id.get<uint32_t>());
    }
  }
  return tables;
}

absl::StatusOr<std::unique_ptr<DemoRank>> DemoRank::Create(const DemoShard& shard) {
  const absl::StatusOr<KvCacheShape> shape = CacheShapeOf(shard);
  if (!shape.ok()) return shape.status();
  absl::StatusOr<KvCache> cache = KvCache::Create(*shape);
  if (!cache.ok()) return cache.status();
  std::unique_ptr<DemoRank> rank(new DemoRank(shard, std::move(*cache)));
  // Nothing reads unused blocks of the prefill side.
  if (!rank->prefill()) {
    if (absl::Status s = rank->content_.Clear(rank->AllBlocks()); !s.ok()) return s;
  }
  if (absl::Status s = rank->Register(); !s.ok()) return s;
  return rank;
}

absl::Status DemoRank::Register() {
  absl::StatusOr<std::unique_ptr<Agent>> agent =
      MakeAgent({.role = absl::StrCat(shard_.side, "-", shard_.rank),
                 .backends = shard_.config.backend,
                 .own_port = true,
                 .fault_seed = shard_.config.seed + shard_.rank + (prefill() ? 0 : 1000)});
  if (!agent.ok()) return agent.status();
  agent_ = std::move(*agent);
  // Only this agent reads the source: peers need no access.
  const Access access = prefill() ? Access::kNone : Access::kRemoteWrite;
  if (auto s = cache_.RegisterWith(*agent_, access); !s.ok()) return s.status();
  const absl::StatusOr<KvLayout> layout = LayoutOf(shard_, cache_.shape());
  if (!layout.ok()) return layout.status();
  // K, then V, layer by layer, as the library expects them.
  std::vector<uint64_t> tensors;
  for (const PagedRegion& region : cache_.regions()) tensors.push_back(region.base);
  return agent_->RegisterKvCache(kCache, *layout, tensors);
}

std::vector<uint32_t> DemoRank::AllBlocks() const {
  std::vector<uint32_t> ids(cache_.shape().blocks);
  std::iota(ids.begin(), ids.end(), 0u);
  return ids;
}

absl::StatusOr<Json> DemoRank::Answer(const Json& message) {
  const std::string type = GetString(message, "type");
  absl::Status status = absl::OkStatus();
  if (type == "meet") {
    status = Meet(message);
  } else if (type == "prepare") {
    status = Prepare(message);
  } else if (type == "write") {
    status = Write(message);
  } else if (type == "await") {
    return Await();
  } else if (type == "check") {
    return Check();
  } else if (type == "finish") {
    return Finish();
  } else {
    status = absl::InternalError("unknown message '" + type + "'");
  }
  if (!status.ok()) return status;
  return Json::object();
}

absl::Status DemoRank::Meet(const Json& message) {
  const absl::StatusOr<std::string> metadata = GetHex(message, "metadata");
  if (!metadata.ok()) return metadata.status();
  absl::StatusOr<std::string> name = agent_->AddPeer(*metadata);
  if (!name.ok()) return name.status();
  group_.push_back(std::move(*name));
  return absl::OkStatus();
}

absl::Status DemoRank::Prepare(const Json& message) {
  const absl::StatusOr<uint64_t> first = GetUint(message, "first");
  if (!first.ok()) return first.status();
  absl::StatusOr<DemoTables> tables = GetTables(message, "tables");
  if (!tables.ok()) return tables.status();
  const absl::StatusOr<uint64_t> corrupt = GetUint(message, "corrupt");  // usually missing
  first_ = static_cast<uint32_t>(*first);
  tables_ = std::move(*tables);
  for (uint32_t i = 0; i < tables_.size(); ++i) {
    if (!prefill()) {
      if (absl::Status s = content_.CheckClear(tables_[i]); !s.ok()) return s;
      continue;
    }
    if (absl::Status s = content_.Fill(first_ + i, tables_[i]); !s.ok()) return s;
    if (shard_.rank == 0 && corrupt.ok() && *corrupt == first_ + i) {
      absl::Status s = cache_.Corrupt(cache_.shape().pieces / 2, tables_[i].front(), 0);
      if (!s.ok()) return s;
    }
  }
  return absl::OkStatus();
}

absl::Status DemoRank::Write(const Json& message) {
  const absl::StatusOr<DemoTables> remote = GetTables(message, "tables");
  if (!remote.ok()) return remote.status();
  if (remote->size() != tables_.size())
    return absl::InternalError("other requests than the prepared ones");
  std::vector<Transfer> transfers;
  for (uint32_t i = 0; i < tables_.size(); ++i) {
    absl::StatusOr<Transfer> transfer = agent_->WriteBlocks(
        group_,
        {.cache = kCache,
         .local_ids = tables_[i],
         .remote_ids = (*remote)[i],
         .tokens = shard_.config.tokens},
        {.request = RequestName(first_ + i), .deadline = shard_.config.timeout});
    if (!transfer.ok()) return Annotate(transfer.status(), RequestName(first_ + i));
    transfers.push_back(std::move(*transfer));
  }
  for (uint32_t i = 0; i < transfers.size(); ++i) {
    // The transfer's own deadline ends it before, and says why.
    absl::Status end = transfers[i].Wait(2 * shard_.config.timeout);
    if (!end.ok()) return Annotate(end, RequestName(first_ + i));
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> DemoRank::Await() {
  std::set<std::string> missing;
  for (uint32_t i = 0; i < tables_.size(); ++i) missing.insert(RequestName(first_ + i));
  const Time end = Now() + shard_.config.timeout;
  while (!missing.empty()) {
    const absl::StatusOr<Notification> arrived =
        agent_->WaitNotification(std::max<Duration>(end - Now(), Duration::zero()));
    if (!arrived.ok()) {
      // The error of WaitLayers says which parts are missing.
      const absl::Status why = agent_->WaitLayers(kCache, *missing.begin(),
                                                  shard_.config.model.layers, Duration::zero());
      return why.ok() ? arrived.status() : why;
    }
    if (arrived->cache != kCache || missing.erase(arrived->request) == 0) {
      return absl::InternalError(absl::StrCat("unexpected notification of '", arrived->request,
                                              "' in cache '", arrived->cache, "'"));
    }
  }
  return Json{{"arrived_ns", static_cast<uint64_t>(MonotonicNanoseconds())}};
}

absl::StatusOr<Json> DemoRank::Check() {
  Json errors = Json::array();
  for (uint32_t i = 0; i < tables_.size(); ++i) {
    errors.push_back(std::string(content_.Check(first_ + i, tables_[i]).message()));
    if (absl::Status s = content_.Clear(tables_[i]); !s.ok()) return s;
  }
  return Json{{"errors", std::move(errors)}};
}

Json DemoRank::Finish() {
  ExpectPeersToLeave();
  absl::Status guards = cache_.CheckGuards();
  if (!prefill()) guards.Update(content_.CheckClear(AllBlocks()));
  Json paths = Json::array();
  for (const std::string& peer : group_) {
    paths.push_back(ChosenPath(*agent_, peer, shard_.config.memories()));
  }
  return {{"guards", std::string(guards.message())},
          {"cpu_seconds", CpuSeconds()},
          {"paths", std::move(paths)}};
}

}  // namespace kvxfer::cli
