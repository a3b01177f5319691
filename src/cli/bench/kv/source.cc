#include "src/cli/bench/kv/source.h"

#include <algorithm>
#include <utility>

#include "kvxfer/backend.h"
#include "kvxfer/log.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/stats.h"
#include "src/core/base/strings.h"
#include "src/core/plan/plan.h"

namespace kvxfer::cli::kv_bench {
namespace {

constexpr int kPlans = 15;  // measured plans

RegionTable TableOf(const KvLayout& layout, uint64_t base) {
  return RegionTable({{RegionId{1}, base, CacheBytes(layout), Access::kReadWrite}}, "a cache");
}

}  // namespace

absl::StatusOr<Source> Source::Open(const Case& one, size_t index, Channel& channel,
                                    const Options& options) {
  Source source;
  source.one_ = &one;
  source.channel_ = &channel;
  source.local_ids_ = one.IdsOf(one.prefill);
  source.remote_ids_ = one.IdsOf(one.decode);
  absl::Status status = source.MakeRanks(options);
  if (status.ok()) status = source.Meet(index);
  if (!status.ok()) return status;
  return source;
}

absl::Status Source::MakeRanks(const Options& options) {
  const auto shares = SharesOf(*one_);
  if (!shares.ok()) return shares.status();
  shares_ = options.mode->alone ? OwnShares(*shares) : *shares;
  rank_numbers_ = PrefillRanks(shares_);
  for (const uint32_t number : rank_numbers_) {
    auto rank = Rank::Create(*one_, one_->prefill, number, true, options);
    if (!rank.ok()) return rank.status();
    if (absl::Status s = rank->Fill(); !s.ok()) return s;
    ranks_.push_back(*std::move(rank));
  }
  return absl::OkStatus();
}

absl::Status Source::Meet(size_t index) {
  Json prefill = Json::array();
  for (const Rank& rank : ranks_) {
    const auto metadata = rank.agent().Metadata();
    if (!metadata.ok()) return metadata.status();
    prefill.push_back({{"metadata", ToHex(*metadata)}});
  }
  const auto answer = Ask({{"do", "open"}, {"case", index}, {"prefill", prefill}});
  if (!answer.ok()) return answer.status();
  for (const Json& decode : answer->value("ranks", Json::array())) {
    const auto base = GetUint(decode, "base");
    if (!base.ok()) return base.status();
    remotes_.push_back({.name = GetString(decode, "name"), .base = *base});
    group_.push_back(remotes_.back().name);
    for (const Rank& rank : ranks_) {
      if (auto s = AddPeerOf(decode, rank.agent()); !s.ok()) return s.status();
    }
  }
  return absl::OkStatus();
}

absl::Status Source::Close() {
  ExpectPeersToLeave();
  ranks_.clear();
  absl::Status status = Ask({{"do", "close"}}).status();
  SetLogLevel(LogLevel::kWarning);  // for the peers of the next case
  return status;
}

const Rank& Source::RankOf(const Share& share) const {
  const auto at = std::ranges::find(rank_numbers_, share.prefill);
  return ranks_[static_cast<size_t>(at - rank_numbers_.begin())];
}

SharePlan Source::PlanOf(const Share& share) const {
  const Rank& rank = RankOf(share);
  // This succeeds: the other process has made the same layout.
  auto theirs = one_->LayoutOf(one_->decode, share.decode, one_->BlocksOf(one_->decode));
  return {*one_, share, rank.layout(), rank.base(), *theirs, remotes_[share.decode].base};
}

absl::StatusOr<Transfer> Source::WritePlain(const Share& share, const PlainBlocks& blocks,
                                            const std::string& name) const {
  return blocks.Write(RankOf(share).agent(), remotes_[share.decode].name,
                      {.notification = name, .deadline = kPatience});
}

KvBlocks Source::Blocks(uint64_t first_token, uint64_t tokens) const {
  return {.cache = CacheName(kCacheName),
          .local_ids = local_ids_,
          .remote_ids = remote_ids_,
          .local_first_token = first_token,
          .remote_first_token = first_token,
          .tokens = tokens};
}

absl::Status Source::Post(const std::string& request, uint32_t first_layer, uint32_t layers,
                          std::vector<Transfer>& posted, const std::atomic<uint32_t>* ready) const {
  KvBlocks blocks = Blocks(0, one_->tokens);
  blocks.first_layer = first_layer;
  blocks.layers = layers;
  const KvOptions options{.request = RequestName(request),
                          .transfer = {.deadline = kPatience, .ready = ready}};
  for (const Rank& rank : ranks_) {
    auto transfer = rank.agent().WriteBlocks(group_, blocks, options);
    if (!transfer.ok()) return Annotate(transfer.status(), rank.agent().name());
    posted.push_back(*std::move(transfer));
  }
  return absl::OkStatus();
}

absl::Status Source::WaitAll(const std::vector<Transfer>& posted) const {
  absl::Status first;
  for (const Transfer& transfer : posted) {
    if (!first.ok()) transfer.Cancel();
    // The transfer's own deadline ends it before, with a better message.
    first.Update(Annotate(transfer.Wait(2 * kPatience), "to " + transfer.peer()));
  }
  return first;
}

absl::Status Source::Write(const std::string& request, uint32_t first_layer,
                           uint32_t layers) const {
  std::vector<Transfer> posted;
  absl::Status status = Post(request, first_layer, layers, posted);
  return status.ok() ? WaitAll(posted) : status;
}

absl::Status Source::Tell(const Json& command) const { return channel_->Send(command, kPatience); }

absl::StatusOr<Json> Source::Answer() const {
  // The target's own time-out ends before, with a better message.
  return channel_->ReceiveAnswer(kPatience + std::chrono::seconds(5));
}

absl::StatusOr<Json> Source::Ask(const Json& command) const {
  if (absl::Status sent = Tell(command); !sent.ok()) return sent;
  return Answer();
}

absl::Status Source::Forget(const std::string& request) const {
  return Ask({{"do", "forget"}, {"request", request}}).status();
}

absl::Status Source::CheckTarget() const {
  for (const Share& share : shares_) {
    const auto answer = Ask({{"do", "check"},
                             {"rank", share.decode},
                             {"first", share.heads.first},
                             {"heads", share.heads.count}});
    if (!answer.ok()) return answer.status();
  }
  return Ask({{"do", "clear"}}).status();
}

absl::StatusOr<Transfer> PlainBlocks::Write(Agent& agent, const std::string& peer,
                                            const TransferOptions& options) const {
  if (!paged()) return agent.Write(peer, DescriptorBlocks{.local = from, .remote = to}, options);
  return agent.Write(
      peer,
      PagedBlocks{
          .local = local, .remote = remote, .local_ids = local_ids, .remote_ids = remote_ids},
      options);
}

SharePlan::SharePlan(const Case& one, const Share& share, const KvLayout& own, uint64_t own_base,
                     const KvLayout& theirs, uint64_t their_base)
    : one_(one),
      heads_(share.heads),
      own_(own),
      theirs_(theirs),
      own_tensors_(TensorsAt(own_, own_base)),
      their_tensors_(TensorsAt(theirs_, their_base)),
      own_ids_(one.IdsOf(one.prefill)),
      their_ids_(one.IdsOf(one.decode)),
      own_table_(TableOf(own_, own_base)),
      their_table_(TableOf(theirs_, their_base)) {}

absl::StatusOr<BlockList> SharePlan::List(uint32_t layers) {
  return ListKvBlocks({.layout = &own_, .tensors = own_tensors_, .ids = own_ids_},
                      {.layout = &theirs_, .tensors = their_tensors_, .ids = their_ids_},
                      {.heads = heads_, .layers = layers}, one_.tokens, Direction::kWrite,
                      own_table_, their_table_, pool_);
}

// Calls visit(run) for each run. The list is one slice (up to 2^32 runs), so that no run is cut.
template <typename Visit>
void SharePlan::Walk(const BlockList& list, Visit visit) {
  const Registration registration{};
  const RemoteKey key{};
  const Registration* const here = &registration;
  const RemoteKey* const there = &key;
  const BlockView view = list.View({&here, 1}, {&there, 1});
  for (SliceCursor cursor(&view); !cursor.done();) {
    RunWalk walk(cursor.Next({.max_bytes = UINT64_MAX, .max_pieces = UINT64_MAX}));
    for (; !walk.done(); walk.Next()) visit(walk.run());
  }
}

absl::StatusOr<PlanFigures> SharePlan::Measure() {
  PlanFigures figures{.smallest = UINT64_MAX};
  std::vector<double> list_ns;
  std::vector<double> plan_ns;
  for (int i = -1; i < kPlans; ++i) {
    const int64_t start = MonotonicNanoseconds();
    auto list = List(one_.kv.layers);
    const int64_t listed = MonotonicNanoseconds();
    if (!list.ok()) return list.status();
    uint64_t runs = 0;
    Walk(*list, [&](const kvxfer::Run&) { ++runs; });
    const int64_t planned = MonotonicNanoseconds();
    figures.runs = runs;
    figures.bytes = list->total_bytes();
    if (i < 0) {  // warm-up
      Walk(*list, [&](const kvxfer::Run& run) {
        figures.smallest = std::min(figures.smallest, run.bytes);
        figures.largest = std::max(figures.largest, run.bytes);
      });
    } else {
      list_ns.push_back(static_cast<double>(listed - start) / static_cast<double>(runs));
      plan_ns.push_back(static_cast<double>(planned - start) / static_cast<double>(runs));
    }
    list->ReleaseIds(pool_);
  }
  figures.list_ns = Median(list_ns);
  figures.plan_ns = Median(plan_ns);
  return figures;
}

absl::StatusOr<std::vector<kvxfer::Run>> SharePlan::RunsOfOneLayer() {
  auto list = List(1);
  if (!list.ok()) return list.status();
  std::vector<kvxfer::Run> runs;
  Walk(*list, [&](const kvxfer::Run& run) { runs.push_back(run); });
  list->ReleaseIds(pool_);
  return runs;
}

absl::StatusOr<PlainBlocks> SharePlan::Plain() {
  const auto runs = RunsOfOneLayer();
  if (!runs.ok()) return runs.status();
  const uint64_t bytes = runs->front().bytes;
  const bool paged = std::ranges::all_of(*runs, [&](const kvxfer::Run& run) {
    return run.bytes == bytes && (run.local - own_tensors_[0]) % bytes == 0 &&
           (run.remote - their_tensors_[0]) % bytes == 0;
  });
  PlainBlocks plain;
  for (uint32_t layer = 0; layer < one_.kv.layers; ++layer) {
    const auto region = [&](const KvLayout& layout, const std::vector<uint64_t>& tensors) {
      return PagedRegion{.base = tensors[layer],
                         .block_bytes = bytes,
                         .stride = bytes,
                         .count = layout.tensor_bytes(0) / bytes};
    };
    if (paged) {
      plain.local.push_back(region(own_, own_tensors_));
      plain.remote.push_back(region(theirs_, their_tensors_));
      continue;
    }
    for (const kvxfer::Run& run : *runs) {
      plain.from.push_back({run.local - own_tensors_[0] + own_tensors_[layer], run.bytes});
      plain.to.push_back({run.remote - their_tensors_[0] + their_tensors_[layer], run.bytes});
    }
  }
  if (!paged) return plain;
  for (const kvxfer::Run& run : *runs) {
    plain.local_ids.push_back(static_cast<uint32_t>((run.local - own_tensors_[0]) / bytes));
    plain.remote_ids.push_back(static_cast<uint32_t>((run.remote - their_tensors_[0]) / bytes));
  }
  return plain;
}

}  // namespace kvxfer::cli::kv_bench
