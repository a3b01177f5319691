// A rank of `kvxfer demo --prefill-tp N --decode-tp N`, in its own process, `kvxfer demo-rank`: its
// part of the KV cache, its agent, and the commands of the parent, round by round. A round consists
// of requests that move at the same time.
//
// parent → rank  meet     metadata: that of a decode rank, for a prefill rank
//                prepare  first, tables: the requests from `first` on and their blocks on this
//                         rank; prefill makes the content, decode checks that the blocks are unused
//                write    tables: their blocks on the decode side; ends when all data has arrived
//                await    ends when the agent was notified that each request is complete
//                check    decode checks every byte and marks the blocks as unused
//                finish   checks guards and unused blocks, returns the paths
//                leave    ends the process

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "src/cli/common/bootstrap.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/stats.h"
#include "src/cli/demo/shard.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr const char* kCache = "kv";

std::string NameOfRequest(uint64_t request) { return absl::StrCat("request ", request); }

// Thread-safety: one thread.
class DemoRank {
 public:
  static absl::StatusOr<std::unique_ptr<DemoRank>> Create(const DemoShard& shard) {
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

  absl::StatusOr<std::string> Metadata() const { return agent_->Metadata(); }
  // Executes one command, except "leave", and returns its answer.
  absl::StatusOr<Json> Answer(const Json& message) {
    const std::string type = GetString(message, "type");
    const auto done = [](const absl::Status& status) -> absl::StatusOr<Json> {
      if (!status.ok()) return status;
      return Json::object();
    };
    if (type == "meet") return done(Meet(message));
    if (type == "prepare") return done(Prepare(message));
    if (type == "write") return done(Write(message));
    if (type == "await") return Await();
    if (type == "check") return Check();
    if (type == "finish") return Finish();
    return absl::InternalError("unknown message '" + type + "'");
  }

 private:
  DemoRank(const DemoShard& shard, KvCache cache)
      : shard_(shard), cache_(std::move(cache)), content_(cache_, shard_) {}
  absl::Status Register() {
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
    return agent_->RegisterKvCache(CacheName(kCache), *layout, tensors);
  }

  absl::Status Meet(const Json& message) {
    absl::StatusOr<std::string> name = AddPeerOf(message, *agent_);
    if (!name.ok()) return name.status();
    group_.push_back(std::move(*name));
    return absl::OkStatus();
  }

  absl::Status Prepare(const Json& message) {
    const absl::StatusOr<uint64_t> first = GetUint(message, "first");
    if (!first.ok()) return first.status();
    absl::StatusOr<DemoTables> tables = GetField<DemoTables>(message, "tables");
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

  absl::Status Write(const Json& message) {
    const absl::StatusOr<DemoTables> remote = GetField<DemoTables>(message, "tables");
    if (!remote.ok()) return remote.status();
    if (remote->size() != tables_.size())
      return absl::InternalError("other requests than the prepared ones");
    std::vector<Transfer> transfers;
    for (uint32_t i = 0; i < tables_.size(); ++i) {
      absl::StatusOr<Transfer> transfer =
          agent_->WriteBlocks(group_,
                              {.cache = CacheName(kCache),
                               .local_ids = tables_[i],
                               .remote_ids = (*remote)[i],
                               .tokens = shard_.config.tokens},
                              {.request = RequestName(NameOfRequest(first_ + i)),
                               .transfer = {.deadline = shard_.config.timeout}});
      if (!transfer.ok()) return Annotate(transfer.status(), NameOfRequest(first_ + i));
      transfers.push_back(std::move(*transfer));
    }
    for (uint32_t i = 0; i < transfers.size(); ++i) {
      // The transfer's own deadline ends it before, and says why.
      absl::Status end = transfers[i].Wait(2 * shard_.config.timeout);
      if (!end.ok()) return Annotate(end, NameOfRequest(first_ + i));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Json> Await() {
    std::set<std::string> missing;
    for (uint32_t i = 0; i < tables_.size(); ++i) missing.insert(NameOfRequest(first_ + i));
    const Time end = Now() + shard_.config.timeout;
    while (!missing.empty()) {
      const absl::StatusOr<Notification> arrived =
          agent_->WaitNotification(std::max<Duration>(end - Now(), Duration::zero()));
      if (!arrived.ok()) {
        // The error of WaitLayers says which parts are missing.
        const absl::Status why =
            agent_->WaitLayers(CacheName(kCache), RequestName(*missing.begin()),
                               shard_.config.model.layers, Duration::zero());
        return why.ok() ? arrived.status() : why;
      }
      if (arrived->cache.text != kCache || missing.erase(arrived->request.text) == 0) {
        return absl::InternalError(absl::StrCat("unexpected notification of '",
                                                arrived->request.text, "' in cache '",
                                                arrived->cache.text, "'"));
      }
    }
    return Json{{"arrived_ns", static_cast<uint64_t>(MonotonicNanoseconds())}};
  }

  absl::StatusOr<Json> Check() {
    Json errors = Json::array();
    for (uint32_t i = 0; i < tables_.size(); ++i) {
      errors.push_back(std::string(content_.Check(first_ + i, tables_[i]).message()));
      if (absl::Status s = content_.Clear(tables_[i]); !s.ok()) return s;
    }
    return Json{{"errors", std::move(errors)}};
  }

  Json Finish() {
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

  std::vector<uint32_t> AllBlocks() const {
    std::vector<uint32_t> ids(cache_.shape().blocks);
    std::iota(ids.begin(), ids.end(), 0u);
    return ids;
  }

  bool prefill() const { return shard_.side == "prefill"; }

  // In the order of lifetimes.
  const DemoShard shard_;
  const KvCache cache_;
  const DemoContent content_;
  std::unique_ptr<Agent> agent_;

  std::vector<std::string> group_;  // prefill: every decode rank's agent
  uint32_t first_ = 0;              // request of the round
  DemoTables tables_;               // of the round
};

absl::Status Begin(Channel& parent, std::unique_ptr<DemoRank>& rank) {
  const absl::StatusOr<Json> hello = parent.Receive(std::chrono::seconds(30));
  if (!hello.ok()) return hello.status();
  const absl::StatusOr<DemoShard> shard = DemoShardFromJson(*hello);
  if (!shard.ok()) return shard.status();
  if (absl::Status s = Into(rank, DemoRank::Create(*shard)); !s.ok()) return s;
  const absl::StatusOr<std::string> metadata = rank->Metadata();
  if (!metadata.ok()) return metadata.status();
  return parent.Send({{"metadata", ToHex(*metadata)}});
}

absl::Status Serve(Channel& parent, DemoRank& rank) {
  for (;;) {
    const absl::StatusOr<Json> message = parent.Receive(kIdle);
    if (!message.ok()) return message.status();
    if (GetString(*message, "type") == "leave") return absl::OkStatus();
    const absl::StatusOr<Json> answer = rank.Answer(*message);
    if (!answer.ok()) return answer.status();
    if (absl::Status s = parent.Send(*answer); !s.ok()) return s;
  }
}

absl::Status DemoRankProcess() {
  absl::StatusOr<Channel> parent = ChannelToParent();
  if (!parent.ok()) return parent.status();
  RaiseDescriptorLimit();
  std::unique_ptr<DemoRank> rank;
  absl::Status status = Begin(*parent, rank);
  if (status.ok()) status = Serve(*parent, *rank);
  // Only the parent reports to the user. It also ends this process: if the process ended by itself,
  // it would count as lost.
  if (!status.ok() && parent->Send(ErrorAnswer(status)).ok()) (void)parent->Receive(kIdle);
  return absl::OkStatus();
}

}  // namespace

void AddDemoRank(CLI::App& app, Action& action) {
  AddCommand(app, action, "demo-rank", "A rank of demo", DemoRankProcess)->group("");
}

}  // namespace kvxfer::cli
