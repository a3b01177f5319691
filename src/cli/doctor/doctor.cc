#include "src/cli/doctor/doctor.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/options.h"
#include "src/cli/common/table.h"
#include "src/cli/topo/topology_fixture.h"

namespace kvxfer::cli {
namespace {

struct Family {
  const char* name;
  std::span<const Check> checks;
};

Severity Worst(const Findings& findings) {
  Severity worst = Severity::kNotApplicable;
  for (const Finding& finding : findings) worst = std::max(worst, finding.severity);
  return worst;
}

std::map<Severity, size_t> Counts(const std::vector<CheckResult>& results) {
  std::map<Severity, size_t> counts;
  for (const CheckResult& result : results) ++counts[result.severity];
  return counts;
}

std::string Counted(size_t count, const char* word) {
  return absl::StrCat(count, " ", word, count != 1 ? "s" : "");
}

// Shortens text in the table; Details prints it completely.
std::string Shortened(const std::string& text) {
  constexpr size_t kLongest = 80;
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

// The finding on the check's line: the first one of the worst severity.
const Finding& Shown(const CheckResult& result) {
  return *std::find_if(result.findings.begin(), result.findings.end(),
                       [&](const Finding& f) { return f.severity == result.severity; });
}

// Explains every finding of one severity.
std::string Details(const std::vector<CheckResult>& results, Severity severity) {
  std::string text;
  for (const CheckResult& result : results) {
    for (const Finding& finding : result.findings) {
      if (finding.severity != severity) continue;
      absl::StrAppend(&text, "\n", severity == Severity::kProblem ? "PROBLEM" : "WARNING", "  ",
                      result.check->name, ": ", finding.what, "\n  why   ", finding.why,
                      "\n  fix   ", finding.fix, "\n");
    }
  }
  return text;
}

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
    return Invalid("--backend and --listen need a server: kvxfer doctor HOST");
  }
  if (!flags.root.empty() || !flags.fixture.empty() || !flags.fabrics.empty()) {
    return Invalid("--root, --fixture and --fabric check a host: leave the server out");
  }
  const absl::StatusOr<PeerReport> report = CheckPeer(flags.server, flags.peer);
  if (!report.ok()) return report.status();
  std::fputs(
      flags.json ? (DumpJson(PeerJson(*report), 2) + "\n").c_str() : PeerText(*report).c_str(),
      stdout);
  return PeerStatus(*report, flags.strict);
}

}  // namespace

const char* ToString(Severity severity) {
  constexpr std::array kNames = {"n/a", "ok", "warning", "problem"};
  return kNames.at(static_cast<size_t>(severity));
}

std::vector<CheckResult> RunChecks(const SystemView& view) {
  const std::vector<Family> families = {
      {"devices", DeviceChecks()}, {"ports", PortChecks()},       {"fabric", FabricChecks()},
      {"rights", RightsChecks()},  {"memory", MemoryChecks()},    {"gpus", GpuChecks()},
      {"gpus", GpuNicChecks()},    {"software", SoftwareChecks()}};
  std::vector<CheckResult> results;
  for (const Family& family : families) {
    for (const Check& check : family.checks) {
      Findings findings = check.run(view);
      const Severity severity = Worst(findings);
      results.push_back({.family = family.name,
                         .check = &check,
                         .findings = std::move(findings),
                         .severity = severity});
    }
  }
  return results;
}

std::string DoctorText(const std::vector<CheckResult>& results) {
  TextGrid grid;
  std::string last;
  std::vector<std::string> without;
  for (const CheckResult& result : results) {
    const Finding& shown = Shown(result);
    // These two explain most of the other checks that do not apply.
    const bool explains = result.check == &DeviceChecks()[0] || result.check == &GpuChecks()[0];
    if (result.severity == Severity::kNotApplicable && !explains) {
      without.emplace_back(result.check->name);
      continue;
    }
    const auto same =
        std::count_if(result.findings.begin(), result.findings.end(),
                      [&](const Finding& f) { return f.severity == result.severity; });
    const bool bad = result.severity >= Severity::kWarning;
    std::string what = bad ? Shortened(shown.what) : shown.what;
    if (bad && same > 1) absl::StrAppend(&what, " (and ", same - 1, " more)");
    std::string severity = ToString(result.severity);
    if (bad) absl::AsciiStrToUpper(&severity);
    grid.Add({result.family == last ? "" : result.family, result.check->name, severity, what});
    last = result.family;
    // Only the table shows findings that are ok.
    for (const Finding& finding : result.findings) {
      if (finding.severity != Severity::kOk || &finding == &shown) continue;
      grid.Add({"", "", ToString(Severity::kOk), finding.what});
    }
  }
  std::map<Severity, size_t> counts = Counts(results);
  std::string text = grid.ToString();
  if (!without.empty()) {
    absl::StrAppend(&text, "not applicable: ", absl::StrJoin(without, " "), "\n");
  }
  text += Details(results, Severity::kProblem) + Details(results, Severity::kWarning);
  absl::StrAppend(&text, "\n", Counted(counts[Severity::kProblem], "problem"), ", ",
                  Counted(counts[Severity::kWarning], "warning"), ", ", counts[Severity::kOk],
                  " ok, ", counts[Severity::kNotApplicable], " not applicable\n");
  return text;
}

Json DoctorJson(const std::vector<CheckResult>& results) {
  Json checks = Json::array();
  for (const CheckResult& result : results) {
    Json findings = Json::array();
    for (const Finding& finding : result.findings) {
      findings.push_back({{"severity", ToString(finding.severity)},
                          {"what", finding.what},
                          {"why", finding.why},
                          {"fix", finding.fix}});
    }
    checks.push_back({{"family", result.family},
                      {"name", result.check->name},
                      {"reads", result.check->reads},
                      {"severity", ToString(result.severity)},
                      {"findings", findings}});
  }
  std::map<Severity, size_t> counts = Counts(results);
  return {{"checks", checks},
          {"problems", counts[Severity::kProblem]},
          {"warnings", counts[Severity::kWarning]},
          {"ok", counts[Severity::kOk]},
          {"not_applicable", counts[Severity::kNotApplicable]}};
}

absl::Status DoctorStatus(const std::vector<CheckResult>& results, bool strict) {
  std::map<Severity, size_t> counts = Counts(results);
  const size_t problems = counts[Severity::kProblem];
  const size_t warnings = strict ? counts[Severity::kWarning] : 0;
  if (problems + warnings == 0) return absl::OkStatus();
  std::vector<std::string> names;
  for (const CheckResult& result : results) {
    const bool counts_here =
        result.severity == Severity::kProblem || (strict && result.severity == Severity::kWarning);
    if (counts_here) names.emplace_back(result.check->name);
  }
  return absl::AbortedError(absl::StrCat(
      Counted(problems, "problem"),
      warnings > 0 ? absl::StrCat(", ", Counted(warnings, "warning"), " (--strict)") : "", ": ",
      absl::StrJoin(names, ", ")));
}

std::string Names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  if (names.size() <= kShown) return absl::StrJoin(names, " ");
  return absl::StrCat(absl::StrJoin(names.begin(), names.begin() + kShown, " "), " and ",
                      names.size() - kShown, " more");
}

std::vector<size_t> PortsWhere(const Topology& topology,
                               absl::FunctionRef<bool(const RdmaPort&)> predicate) {
  std::vector<size_t> ports;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    if (predicate(topology.ports[i])) ports.push_back(i);
  }
  return ports;
}

std::string PortNames(const Topology& topology, const std::vector<size_t>& ports) {
  std::vector<std::string> names;
  for (const size_t port : ports) {
    const RdmaPort& named = topology.ports[port];
    const bool first_only = named.number == 1;
    names.push_back(first_only ? topology.DeviceOf(named).name : topology.PortName(named));
  }
  return Names(names);
}

void AddDoctor(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      AddCommand(app, action, "doctor",
                 "Reports what is wrong with this host, or with the paths to a `kvxfer "
                 "serve`, and how to fix it",
                 [flags] { return RunDoctor(*flags); });
  AddText(command, "server", flags->server, "HOST[:PORT]",
          "Address of `kvxfer serve`: tries the paths there (default: checks this host)");
  AddHost(command, flags->fixture, flags->root, flags->fabrics);
  AddBackend(command, flags->peer.backends, "those that agents try by default; with a server only");
  AddListen(command, flags->peer.listen);
  command->add_flag("--strict", flags->strict, "Counts warnings as problems");
  AddJson(command, flags->json);
}

}  // namespace kvxfer::cli
