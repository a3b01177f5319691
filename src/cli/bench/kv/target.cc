#include <algorithm>
#include <utility>

#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/bootstrap.h"
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
        if (auto s = AddPeerOf(prefill, ranks_[i].agent()); !s.ok()) return s.status();
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
          CacheName(kCacheName), RequestName(request), static_cast<uint32_t>(*layers), kPatience);
      if (!status.ok()) return Annotate(status, agent.name());
    }
    return Json{{"at", MonotonicNanoseconds()}};
  }

  absl::Status Forget(const std::string& request) const {
    for (const uint32_t rank : live_) {
      Agent& agent = ranks_[rank].agent();
      const absl::Status status = agent.DropRequest(CacheName(kCacheName), RequestName(request));
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

Json MemoryJson() { return {{"heap", HeapBytes()}, {"rss", RssBytes()}}; }

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

absl::StatusOr<std::unique_ptr<TargetProcess>> TargetProcess::Start(const std::vector<Case>& cases,
                                                                    const Options& options) {
  constexpr const char* kRole = "the decode process";
  std::unique_ptr<TargetProcess> target(new TargetProcess);
  const auto serve = [&cases, &options](Channel channel) {
    return ServeTarget(std::move(channel), cases, options);
  };
  if (!options.one_process()) {
    auto process = WorkerProcess::Fork(kRole, [&serve](Channel channel) {
      // Only the parent logs for the user; it sees the same losses.
      ExpectPeersToLeave();
      return serve(std::move(channel));
    });
    if (!process.ok()) return process.status();
    target->process_ = *std::move(process);
    return target;
  }
  auto ends = ChannelEnds();
  if (!ends.ok()) return ends.status();
  auto& [ours, theirs] = *ends;
  target->channel_ = Channel(std::move(ours), kRole);
  target->thread_ =
      std::jthread([serve, channel = Channel(std::move(theirs), "the prefill side")]() mutable {
        // An error was sent to the other side, or the other side has closed.
        (void)serve(std::move(channel));
      });
  return target;
}

TargetProcess::~TargetProcess() {
  channel_.Shutdown();  // the thread finds it closed and ends
}

absl::Status TargetProcess::End() {
  const auto answer = channel().Call({{"do", "end"}}, kPatience);
  if (!answer.ok()) return answer.status();
  return process_ ? process_->Join(kPatience) : absl::OkStatus();
}

absl::Status TargetProcess::Explain(const absl::Status& status) {
  if (!process_ || !(absl::IsUnavailable(status) || absl::IsAborted(status))) return status;
  WorkerProcess* const process = &*process_;
  const absl::Status ended = FindEnded({&process, 1});
  return ended.ok() ? status : BrokenOff(ended);
}

}  // namespace kvxfer::cli::kv_bench
