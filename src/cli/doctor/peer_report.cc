// The report on the paths to a server: PeerText, PeerJson, PeerStatus, and JudgeRails.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

std::string RailName(const RailExplanation& rail, size_t index) {
  return absl::StrCat("rail ", index, rail.name.empty() ? "" : " ", rail.name);
}

// One line for each rail if there are several rails, or one is down.
std::string RailsText(const PeerPath& path) {
  const bool telling =
      path.each_rail.size() > 1 || std::any_of(path.each_rail.begin(), path.each_rail.end(),
                                               [](const RailExplanation& r) { return !r.up; });
  if (!path.reached || !telling) return {};
  using Align = TextGrid::Align;
  TextGrid grid({Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kLeft});
  for (size_t i = 0; i < path.each_rail.size(); ++i) {
    const RailExplanation& rail = path.each_rail[i];
    const double rtt = Seconds(rail.round_trip);
    grid.Add({RailName(rail, i), rail.up ? "up" : "DOWN", rail.up && rtt > 0 ? FormatTime(rtt) : "",
              rail.up ? FormatFixed(8 * rail.bytes_per_second / 1e9, 2) + " Gb/s" : "", rail.why});
  }
  return absl::StrCat("\n", path.backend, "\n", grid.ToString("  "));
}

// For host memory; memory of GPUs on one host uses cuda_ipc.
std::string ChosenText(const PeerReport& report) {
  if (report.chosen.empty()) return "no backend carries transfers to this server\n";
  const bool gpus = std::ranges::any_of(report.paths, [](const PeerPath& path) {
    return path.backend == "cuda_ipc" && path.reached;
  });
  return absl::StrCat("transfers to this server use ", report.chosen,
                      gpus ? "; between GPUs cuda_ipc" : "", "\n");
}

}  // namespace

// Transfers use the other rails while some are down.
void JudgeRails(PeerPath& path) {
  std::vector<std::string> down;
  for (size_t i = 0; i < path.each_rail.size(); ++i) {
    const RailExplanation& rail = path.each_rail[i];
    if (!rail.up) down.push_back(absl::StrCat(RailName(rail, i), " (", rail.why, ")"));
  }
  if (down.empty()) return;
  path.severity = Severity::kWarning;
  path.why = absl::StrCat(down.size(), " of ", path.each_rail.size(),
                          " rails are down: ", absl::StrJoin(down, "; "));
  path.fix =
      "kvxfer doctor, on this host and on the server's; give the fabrics the same names on both";
}

std::string PeerText(const PeerReport& report) {
  using Align = TextGrid::Align;
  TextGrid grid({Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight,
                 Align::kRight, Align::kLeft});
  grid.Add({"backend", "", "rails", "rtt min", "rtt p50", "Gb/s", "path"});
  std::string rails;
  std::string details;
  for (const PeerPath& path : report.paths) {
    const char* word = path.reached                                ? "reached"
                       : path.severity == Severity::kNotApplicable ? "-"
                                                                   : "NOT REACHED";
    grid.Add({path.backend, word, path.reached ? absl::StrCat(path.rails) : "",
              path.reached ? FormatTime(path.rtt_min_us * 1e-6) : "",
              path.reached ? FormatTime(path.rtt_p50_us * 1e-6) : "",
              path.reached ? FormatFixed(path.gbps, 2) : "", path.why});
    rails += RailsText(path);
    if (path.severity < Severity::kWarning) continue;
    absl::StrAppend(&details, "\n",
                    path.severity == Severity::kProblem
                        ? absl::StrCat("PROBLEM  ", path.backend, " does not reach ", report.server)
                        : absl::StrCat("WARNING  ", path.backend, " has rails that are down"),
                    "\n  why   ", path.why, "\n  fix   ", path.fix, "\n");
  }
  return absl::StrCat(grid.ToString(), rails, details, "\n", ChosenText(report));
}

Json PeerJson(const PeerReport& report) {
  Json paths = Json::array();
  for (const PeerPath& path : report.paths) {
    paths.push_back({{"backend", path.backend},
                     {"severity", ToString(path.severity)},
                     {"reached", path.reached},
                     {"why", path.why},
                     {"fix", path.fix},
                     {"rails", path.rails},
                     {"rtt_min_us", path.rtt_min_us},
                     {"rtt_p50_us", path.rtt_p50_us},
                     {"rtt_max_us", path.rtt_max_us},
                     {"gbps", path.gbps},
                     {"here", path.here},
                     {"there", path.there}});
  }
  return {{"server", report.server},
          {"chosen", report.chosen.empty() ? Json(nullptr) : Json(report.chosen)},
          {"paths", paths}};
}

absl::Status PeerStatus(const PeerReport& report, bool strict) {
  std::vector<std::string> faults;
  bool reached = false;
  for (const PeerPath& path : report.paths) {
    reached |= path.reached;
    if (path.severity == Severity::kProblem) faults.push_back("not reached over " + path.backend);
    if (strict && path.severity == Severity::kWarning) {
      faults.push_back("not every rail of " + path.backend + " is up (--strict)");
    }
  }
  if (faults.empty() && !reached) faults.emplace_back("no backend reaches it");
  if (faults.empty()) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(report.server, ": ", absl::StrJoin(faults, ", ")));
}

}  // namespace kvxfer::cli
