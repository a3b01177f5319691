// `kvxfer demo-rank`: the process of a rank (rank.h).

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>

#include "src/cli/commands.h"
#include "src/cli/common/process.h"
#include "src/cli/demo/rank.h"

namespace kvxfer::cli {
namespace {

constexpr Duration kIdle = std::chrono::hours(24);  // this process ends with its parent anyway

absl::Status Begin(Channel& parent, std::unique_ptr<DemoRank>& rank) {
  const absl::StatusOr<Json> hello = parent.Receive(std::chrono::seconds(30));
  if (!hello.ok()) return hello.status();
  const absl::StatusOr<DemoShard> shard = DemoShardFromJson(*hello);
  if (!shard.ok()) return shard.status();
  absl::StatusOr<std::unique_ptr<DemoRank>> made = DemoRank::Create(*shard);
  if (!made.ok()) return made.status();
  rank = std::move(*made);
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
  CLI::App* command = app.add_subcommand("demo-rank", "A rank of demo");
  command->group("");
  command->callback([&action] { action = DemoRankProcess; });
}

}  // namespace kvxfer::cli
