#include "src/cli/bench/kv/target.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/bench/kv/rank.h"
#include "src/cli/bench/kv/statistics.h"
#include "src/cli/common/agent_setup.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/stats.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli::kv_bench {
namespace {

class Target {
 public:
  Target(const std::vector<Case>& cases, const Options& options)
      : cases_(cases), options_(options) {}

  absl::StatusOr<Json> Do(const Json& command) {
    const std::string what = GetString(command, "do");
    if (what == "open") return Open(command);
    if (what == "clear") return Answer(Clear());
    if (what == "check") return Answer(Check(command));
    if (what == "wait") return Wait(command);
    if (what == "forget") return Answer(Forget(GetString(command, "request")));
    if (what == "memory") return MemoryJson();
    ranks_.clear();  // close, end
    return Json::object();
  }

 private:
  static absl::StatusOr<Json> Answer(const absl::Status& status) {
    if (!status.ok()) return status;
    return Json::object();
  }

  absl::StatusOr<Json> Open(const Json& command) {
    const auto index = GetUint(command, "case");
    if (!index.ok()) return index.status();
    const Case& one = cases_.at(*index);
    const auto shares = SharesOf(one);
    if (!shares.ok()) return shares.status();
    live_ = DecodeRanks(*shares);
    Json ranks = Json::array();
    for (uint32_t i = 0; i < one.decode.tp; ++i) {
      const bool live = std::ranges::binary_search(live_, i);
      auto rank = Rank::Create(one, one.decode, i, live, options_);
      if (!rank.ok()) return rank.status();
      ranks_.push_back(*std::move(rank));
      const auto metadata = ranks_[i].agent().Metadata();
      if (!metadata.ok()) return metadata.status();
      ranks.push_back({{"name", ranks_[i].agent().name()},
                       {"metadata", ToHex(*metadata)},
                       {"base", ranks_[i].base()}});
      for (const Json& prefill : command["prefill"]) {
        const auto peer_metadata = GetHex(prefill, "metadata");
        if (!peer_metadata.ok()) return peer_metadata.status();
        if (auto s = ranks_[i].agent().AddPeer(*peer_metadata).status(); !s.ok()) return s;
      }
    }
    return Json{{"ranks", ranks}};
  }

  absl::Status Clear() const {
    for (const uint32_t rank : live_) {
      if (absl::Status s = ranks_[rank].Clear(); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status Check(const Json& command) const {
    const auto rank = GetUint(command, "rank");
    const auto first = GetUint(command, "first");
    const auto heads = GetUint(command, "heads");
    for (const auto& field : {rank, first, heads}) {
      if (!field.ok()) return field.status();
    }
    return ranks_.at(*rank).Check(
        {.first = static_cast<uint32_t>(*first), .count = static_cast<uint32_t>(*heads)});
  }

  absl::StatusOr<Json> Wait(const Json& command) const {
    const auto layers = GetUint(command, "layers");
    if (!layers.ok()) return layers.status();
    const std::string request = GetString(command, "request");
    for (const uint32_t rank : live_) {
      const Agent& agent = ranks_[rank].agent();
      const absl::Status status = ranks_[rank].agent().WaitLayers(
          kCacheName, request, static_cast<uint32_t>(*layers), kPatience);
      if (!status.ok()) return Annotate(status, agent.name());
    }
    return Json{{"at", MonotonicNanoseconds()}};
  }

  absl::Status Forget(const std::string& request) const {
    for (const uint32_t rank : live_) {
      Agent& agent = ranks_[rank].agent();
      const absl::Status status = agent.DropRequest(kCacheName, request);
      // A request that is complete need not be dropped.
      if (!status.ok() && !absl::IsFailedPrecondition(status)) {
        return Annotate(status, agent.name());
      }
      while (agent.PollNotification()) {
      }
      while (agent.PollKvEvent()) {
      }
    }
    return absl::OkStatus();
  }

  const std::vector<Case>& cases_;
  const Options& options_;
  std::vector<Rank> ranks_;
  std::vector<uint32_t> live_;
};

}  // namespace

absl::Status ServeTarget(Channel channel, const std::vector<Case>& cases, const Options& options) {
  Target target(cases, options);
  // The prefill process may be busy between two commands.
  const Duration idle = 2 * kPatience + options.duration;
  for (;;) {
    const auto command = channel.Receive(idle);
    if (!command.ok()) return command.status();
    const auto answer = target.Do(*command);
    absl::Status sent = channel.Send(answer.ok() ? *answer : ErrorAnswer(answer.status()));
    if (!sent.ok()) return sent;
    if (GetString(*command, "do") == "end") return absl::OkStatus();
  }
}

}  // namespace kvxfer::cli::kv_bench
