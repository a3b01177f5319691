#include "src/cli/doctor/doctor.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/text_grid.h"
#include "src/core/base/strings.h"

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

std::string Counted(size_t count, const char* word, bool plural_differs = true) {
  return absl::StrCat(count, " ", word, plural_differs && count != 1 ? "s" : "");
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

}  // namespace

const char* ToString(Severity severity) {
  switch (severity) {
    case Severity::kNotApplicable:
      return "n/a";
    case Severity::kOk:
      return "ok";
    case Severity::kWarning:
      return "warning";
    case Severity::kProblem:
      return "problem";
  }
  return "n/a";
}

std::vector<CheckResult> RunChecks(const SystemView& view) {
  const std::vector<Family> families = {{"devices", DeviceChecks()},   {"ports", PortChecks()},
                                        {"fabric", FabricChecks()},    {"rights", RightsChecks()},
                                        {"memory", MemoryChecks()},    {"gpus", GpuChecks()},
                                        {"software", SoftwareChecks()}};
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
                  Counted(counts[Severity::kWarning], "warning"), ", ",
                  Counted(counts[Severity::kOk], "ok", false), ", ",
                  Counted(counts[Severity::kNotApplicable], "not applicable", false), "\n");
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

std::string PortNames(const Topology& topology, const std::vector<size_t>& ports) {
  std::vector<std::string> names;
  for (const size_t port : ports) {
    const RdmaPort& named = topology.ports[port];
    const bool first_only = named.number == 1;
    names.push_back(first_only ? topology.DeviceOf(named).name : topology.PortName(named));
  }
  return Names(names);
}

}  // namespace kvxfer::cli
