// What is told of the paths to a peer.
#include <algorithm>

#include "src/agent/peer.h"
#include "src/core/strings.h"

namespace kvxfer {
namespace {

// Which path these take is told.
constexpr uint64_t kLargeTransfer = 4 * 1024 * 1024;
constexpr uint64_t kSmallTransfer = 4 * 1024;

// The first that is usable; paths.size(): none.
size_t FirstUsable(const std::vector<PathExplanation>& paths, const PathOrder& order) {
  const auto at = std::ranges::find_if(order, [&](uint8_t index) { return paths[index].usable; });
  return at == order.end() ? paths.size() : *at;
}

}  // namespace

PathExplanation Peer::ExplainPath(const Path& path, Time now) const {
  const PathFigures seen = path.seen.At(now);
  PathExplanation one{.backend = std::string(runtime_->backends[path.backend]->name()),
                      .bytes_per_second = seen.bytes_per_second,
                      .latency = seen.latency};
  one.connected = Up(path);
  one.usable = path.reachable.ok() && (Ready(path) || path.last_error.ok());
  if (one.connected) {
    one.rails = path.link->endpoint->rails();
    one.why = path.link->endpoint->Describe();
    if (!path.link->proven) one.why += WhyNoRail(*path.link);
    one.each_rail = ExplainRails(*path.link);
  } else if (!path.reachable.ok()) {
    one.why = ToStd(path.reachable.message());
  } else {
    one.why = path.last_error.ok() ? "not connected yet: connects with the first transfer"
                                   : ToStd(path.last_error.message());
  }
  return one;
}

// Marks the path that is chosen, and says why where that is not the order of the backends.
void Peer::ExplainChoice(Explanation& out, Time now) const {
  const size_t chosen = FirstUsable(out.paths, Preferred(kLargeTransfer, now));
  if (chosen == out.paths.size()) return;
  out.paths[chosen].chosen = true;
  for (size_t i = 0; i < chosen; ++i) {
    if (!out.paths[i].usable) continue;
    absl::StrAppend(&out.paths[chosen].why, "; taken before ", out.paths[i].backend,
                    ", which was seen slower in the last minute");
    break;
  }
  const size_t small = FirstUsable(out.paths, Preferred(kSmallTransfer, now));
  if (small == chosen) return;
  absl::StrAppend(&out.paths[small].why, "; carries small transfers, seen sooner there than over ",
                  out.paths[chosen].backend);
}

Explanation Peer::Explain() const {
  const Time now = Now();
  Explanation out{.peer = metadata_.name,
                  .incarnation = metadata_.incarnation,
                  .host = metadata_.host.hostname};
  for (const Path& path : paths_) out.paths.push_back(ExplainPath(path, now));
  ExplainChoice(out, now);
  for (const auto& backend : runtime_->backends) {
    const bool known = std::ranges::any_of(
        paths_, [&](const Path& path) { return runtime_->backends[path.backend] == backend; });
    if (known) continue;
    out.paths.push_back(
        {.backend = std::string(backend->name()), .why = "the peer does not offer this backend"});
  }
  return out;
}

}  // namespace kvxfer
