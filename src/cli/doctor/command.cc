// `kvxfer doctor`: what is wrong with this host for transfers, and, with a server, on the way
// there.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/commands.h"
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
    return absl::InvalidArgumentError(
        "--backend and --listen are for a server: kvxfer doctor HOST");
  }
  if (!flags.root.empty() || !flags.fixture.empty() || !flags.fabrics.empty()) {
    return absl::InvalidArgumentError(
        "--root, --fixture and --fabric look at a host, not at a server");
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
  CLI::App* command = app.add_subcommand(
      "doctor",
      "Says what is wrong with this host, or on the way to a `kvxfer serve`, and the remedy");
  const auto flags = std::make_shared<DoctorFlags>();
  command->add_option("server", flags->server,
                      "host:port of kvxfer serve: checks the way there (default: this host)");
  command->add_option("--root", flags->root, "Folder with sys/ and proc/ to look at (default: /)");
  command->add_option("--fixture", flags->fixture,
                      "A described host, as of kvxfer topo (default: this host)");
  command
      ->add_option("--fabric", flags->fabrics,
                   "NAME=PORTS: names the fabric of ports; repeat it (default: as they are found)")
      ->allow_extra_args(false);
  command->add_option("--backend", flags->peer.backends,
                      "Of the way: these only, with commas (default: all that are built in)");
  command->add_option(
      "--listen", flags->peer.listen,
      "Of the way: where answers come in (default: where the server is reached from)");
  command->add_flag("--strict", flags->strict, "Warnings count as problems");
  command->add_flag("--json", flags->json, "Report as JSON");
  command->callback([flags, &action] { action = [flags] { return RunDoctor(*flags); }; });
}

}  // namespace kvxfer::cli
