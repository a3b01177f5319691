#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kvxfer/peer.h"

namespace kvxfer {
namespace {

// A rail that has no name and never failed has nothing to report.
void AppendRail(std::string& out, size_t index, const RailExplanation& rail) {
  if (rail.name.empty() && rail.why.empty()) return;
  absl::StrAppend(&out, "    rail ", index, rail.name.empty() ? "" : " ", rail.name);
  if (rail.up) {
    absl::StrAppend(&out, ": up", rail.why.empty() ? "" : ", failed before: ", rail.why, "\n");
    return;
  }
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(rail.down_for).count();
  absl::StrAppend(&out, ": down since ",
                  ms < 10'000 ? absl::StrCat(ms, " ms") : absl::StrCat(ms / 1000, " s"), ": ",
                  rail.why, "\n");
}

void AppendSeen(std::string& out, const PathExplanation& path) {
  if (path.bytes_per_second > 0) {
    absl::StrAppend(&out, ", ", absl::StrFormat("%.2f GB/s", path.bytes_per_second / 1e9));
  }
  if (path.latency > Duration::zero()) {
    absl::StrAppend(&out, ", ", path.latency / std::chrono::microseconds(1), " µs");
  }
}

const char* NameOf(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "cuda"; }

void AppendMemory(std::string& out, const MemoryExplanation& one) {
  absl::StrAppend(&out, "  ", NameOf(one.local), " ↔ ", NameOf(one.remote), ": ",
                  one.backend.empty() ? "not possible" : one.backend, one.staged ? ", staged" : "",
                  one.why.empty() ? "" : ": ", one.why, "\n");
}

}  // namespace

std::string Explanation::ToString() const {
  std::string out = absl::StrCat("peer ", peer, " on host ", host, ", incarnation ",
                                 incarnation.ToString(), "\n");
  for (const PathExplanation& path : paths) {
    const char* state = path.chosen ? "chosen" : path.usable ? "usable" : "not usable";
    absl::StrAppend(&out, "  ", path.backend, ": ", state, path.connected ? ", connected" : "");
    if (path.rails > 0) absl::StrAppend(&out, ", ", path.rails, " rails");
    AppendSeen(out, path);
    absl::StrAppend(&out, ": ", path.why, "\n");
    for (size_t i = 0; i < path.each_rail.size(); ++i) AppendRail(out, i, path.each_rail[i]);
  }
  for (const MemoryExplanation& one : memory) AppendMemory(out, one);
  return out;
}

}  // namespace kvxfer
