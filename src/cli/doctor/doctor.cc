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

Verdict Worst(const Findings& findings) {
  Verdict worst = Verdict::kNotApplicable;
  for (const Finding& finding : findings) worst = std::max(worst, finding.verdict);
  return worst;
}

std::map<Verdict, size_t> Counts(const std::vector<CheckResult>& results) {
  std::map<Verdict, size_t> counts;
  for (const CheckResult& result : results) ++counts[result.verdict];
  return counts;
}

std::string Counted(size_t count, const char* word, bool plural_differs = true) {
  return absl::StrCat(count, " ", word, plural_differs && count != 1 ? "s" : "");
}

// What stands whole further down is cut in the table.
std::string Shortened(const std::string& text) {
  constexpr size_t kLongest = 80;
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

// The finding that the check's line shows: the first of the worst.
const Finding& Shown(const CheckResult& result) {
  return *std::find_if(result.findings.begin(), result.findings.end(),
                       [&](const Finding& f) { return f.verdict == result.verdict; });
}

// What to do about every finding of one verdict.
std::string Details(const std::vector<CheckResult>& results, Verdict verdict) {
  std::string text;
  for (const CheckResult& result : results) {
    for (const Finding& finding : result.findings) {
      if (finding.verdict != verdict) continue;
      absl::StrAppend(&text, "\n", verdict == Verdict::kProblem ? "PROBLEM" : "WARNING", "  ",
                      result.check->name, ": ", finding.what, "\n  why   ", finding.why,
                      "\n  mend  ", finding.mend, "\n");
    }
  }
  return text;
}

}  // namespace

const char* ToString(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNotApplicable:
      return "n/a";
    case Verdict::kOk:
      return "ok";
    case Verdict::kWarning:
      return "warning";
    case Verdict::kProblem:
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
      const Verdict verdict = Worst(findings);
      results.push_back({.family = family.name,
                         .check = &check,
                         .findings = std::move(findings),
                         .verdict = verdict});
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
    // That there is no device, or no driver, explains most of the others.
    const bool explains = result.check == &DeviceChecks()[0] || result.check == &GpuChecks()[0];
    if (result.verdict == Verdict::kNotApplicable && !explains) {
      without.emplace_back(result.check->name);
      continue;
    }
    const auto same = std::count_if(result.findings.begin(), result.findings.end(),
                                    [&](const Finding& f) { return f.verdict == result.verdict; });
    const bool bad = result.verdict >= Verdict::kWarning;
    std::string what = bad ? Shortened(shown.what) : shown.what;
    if (bad && same > 1) absl::StrAppend(&what, " (and ", same - 1, " more)");
    std::string verdict = ToString(result.verdict);
    if (bad) absl::AsciiStrToUpper(&verdict);
    grid.Add({result.family == last ? "" : result.family, result.check->name, verdict, what});
    last = result.family;
    // What is well stands nowhere else.
    for (const Finding& finding : result.findings) {
      if (finding.verdict != Verdict::kOk || &finding == &shown) continue;
      grid.Add({"", "", ToString(Verdict::kOk), finding.what});
    }
  }
  std::map<Verdict, size_t> counts = Counts(results);
  std::string text = grid.ToString();
  if (!without.empty()) {
    absl::StrAppend(&text, "not applicable: ", absl::StrJoin(without, " "), "\n");
  }
  text += Details(results, Verdict::kProblem) + Details(results, Verdict::kWarning);
  absl::StrAppend(&text, "\n", Counted(counts[Verdict::kProblem], "problem"), ", ",
                  Counted(counts[Verdict::kWarning], "warning"), ", ",
                  Counted(counts[Verdict::kOk], "ok", false), ", ",
                  Counted(counts[Verdict::kNotApplicable], "not applicable", false), "\n");
  return text;
}

Json DoctorJson(const std::vector<CheckResult>& results) {
  Json checks = Json::array();
  for (const CheckResult& result : results) {
    Json findings = Json::array();
    for (const Finding& finding : result.findings) {
      findings.push_back({{"verdict", ToString(finding.verdict)},
                          {"what", finding.what},
                          {"why", finding.why},
                          {"mend", finding.mend}});
    }
    checks.push_back({{"family", result.family},
                      {"name", result.check->name},
                      {"reads", result.check->reads},
                      {"verdict", ToString(result.verdict)},
                      {"findings", findings}});
  }
  std::map<Verdict, size_t> counts = Counts(results);
  return {{"checks", checks},
          {"problems", counts[Verdict::kProblem]},
          {"warnings", counts[Verdict::kWarning]},
          {"ok", counts[Verdict::kOk]},
          {"not_applicable", counts[Verdict::kNotApplicable]}};
}

absl::Status DoctorStatus(const std::vector<CheckResult>& results, bool strict) {
  std::map<Verdict, size_t> counts = Counts(results);
  const size_t problems = counts[Verdict::kProblem];
  const size_t warnings = strict ? counts[Verdict::kWarning] : 0;
  if (problems + warnings == 0) return absl::OkStatus();
  std::vector<std::string> names;
  for (const CheckResult& result : results) {
    const bool counts_here =
        result.verdict == Verdict::kProblem || (strict && result.verdict == Verdict::kWarning);
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
