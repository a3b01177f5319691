// `kvxfer doctor`: checks this host, or with a server the paths to it.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/common/options.h"
#include "src/cli/common/shared_options.h"
#include "src/cli/doctor/doctor.h"
#include "src/cli/doctor/peer.h"
#include "src/cli/doctor/view.h"
#include "src/cli/topo/topology_source.h"

namespace kvxfer::cli {
namespace {

struct DoctorFlags {
  std::string server{};
  std::string root{};
  std::string fixture{};
  std::vector<std::string> fabrics{};
  PeerCheckOptions peer{};
  bool json = false;
  bool strict = false;
};

absl::Status RunHostChecks(const DoctorFlags& flags) {
  absl::StatusOr<TopologySource> source = OpenTopology(flags.root, flags.fixture);
  if (!source.ok()) return source.status();
  absl::StatusOr<Topology> topology = ReadNamedTopology(*source, flags.fabrics);
  if (!topology.ok()) return topology.status();
  const bool live = source->sysfs.root().empty();
  const std::unique_ptr<SystemView> view =
      live ? MakeLiveView(*std::move(topology)) : MakeTreeView(source->sysfs, *std::move(topology));
  const std::vector<CheckResult> results = RunChecks(*view);
  std::fputs(
      flags.json ? (DumpJson(DoctorJson(results), 2) + "\n").c_str() : DoctorText(results).c_str(),
      stdout);
  return DoctorStatus(results, flags.strict);
}

absl::Status RunDoctor(const DoctorFlags& flags) {
  if (flags.server.empty()) {
    if (flags.peer.IsDefault()) return RunHostChecks(flags);
    return absl::InvalidArgumentError("--backend and --listen need a server: kvxfer doctor HOST");
  }
  if (!flags.root.empty() || !flags.fixture.empty() || !flags.fabrics.empty()) {
    return absl::InvalidArgumentError(
        "--root, --fixture and --fabric check a host: leave the server out");
  }
  const absl::StatusOr<PeerReport> report = CheckPeer(flags.server, flags.peer);
  if (!report.ok()) return report.status();
  std::fputs(
      flags.json ? (DumpJson(PeerJson(*report), 2) + "\n").c_str() : PeerText(*report).c_str(),
      stdout);
  return PeerStatus(*report, flags.strict);
}

}  // namespace

void AddDoctor(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("doctor",
                         "Reports what is wrong with this host, or with the paths to a `kvxfer "
                         "serve`, and how to fix it");
  const auto flags = std::make_shared<DoctorFlags>();
  AddText(command, "server", flags->server, "HOST[:PORT]",
          "Address of `kvxfer serve`: tries the paths there (default: checks this host)");
  AddHost(command, flags->fixture, flags->root, flags->fabrics);
  AddBackend(command, flags->peer.backends, "those that agents try by default; with a server only");
  AddListen(command, flags->peer.listen);
  command->add_flag("--strict", flags->strict, "Counts warnings as problems");
  AddJson(command, flags->json);
  command->callback([flags, &action] { action = [flags] { return RunDoctor(*flags); }; });
}

}  // namespace kvxfer::cli
