#include <utility>

#include "src/cli/bench/initiator.h"
#include "src/cli/bench/kv/target.h"
#include "src/cli/common/agent_setup.h"

namespace kvxfer::cli::kv_bench {

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
