#include "absl/strings/str_cat.h"
#include "kvxfer/peer.h"

namespace kvxfer {

std::string Explanation::ToString() const {
  std::string out = absl::StrCat("peer ", peer, " on host ", host, ", incarnation ",
                                 incarnation.ToString(), "\n");
  for (const PathExplanation& path : paths) {
    const char* state = path.connected ? "connected"
                        : path.chosen  ? "chosen"
                        : path.usable  ? "usable"
                                       : "not usable";
    absl::StrAppend(&out, "  ", path.backend, ": ", state);
    if (path.rails > 0) absl::StrAppend(&out, ", ", path.rails, " rails");
    absl::StrAppend(&out, ": ", path.why, "\n");
  }
  return out;
}

}  // namespace kvxfer
