#include "src/cli/bench/kv/source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvxfer/log.h"
#include "src/cli/bench/kv/target.h"
#include "src/cli/common/agent_setup.h"
#include "src/cli/common/json_util.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli::kv_bench {

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
    const auto metadata = GetHex(decode, "metadata");
    const auto base = GetUint(decode, "base");
    if (!metadata.ok()) return metadata.status();
    if (!base.ok()) return base.status();
    remotes_.push_back({.name = GetString(decode, "name"), .base = *base});
    group_.push_back(remotes_.back().name);
    for (const Rank& rank : ranks_) {
      if (auto s = rank.agent().AddPeer(*metadata).status(); !s.ok()) return s;
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
  return {.cache = kCacheName,
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
  const KvOptions options{.request = request, .deadline = kPatience, .ready = ready};
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

}  // namespace kvxfer::cli::kv_bench
