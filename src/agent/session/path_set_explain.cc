// What is told of the paths to a peer.
#include <algorithm>

#include "src/agent/session/path_set.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Which path these take is told.
constexpr uint64_t kLargeTransfer = 4 * 1024 * 1024;
constexpr uint64_t kSmallTransfer = 4 * 1024;

bool HasCuda(const RegionTable& table) {
  return std::ranges::any_of(
      table.regions(), [](const RegionView& region) { return region.kind == MemoryKind::kCuda; });
}

// Whether all memory of a kind that is registered at a side is reached by a path, of which `host`
// says that it takes host memory.
template <typename Reached>
bool AllReached(const RegionTable& table, MemoryKind kind, bool host, Reached reached) {
  if (kind == MemoryKind::kHost) return host;
  return std::ranges::all_of(table.regions(), [&](const RegionView& region) {
    return region.kind != kind || reached(region);
  });
}

}  // namespace

PathExplanation PathSet::ExplainPath(const Path& path, Time now) const {
  const PathFigures seen = path.seen.At(now);
  PathExplanation one{.backend = std::string(NameOf(path)),
                      .bytes_per_second = seen.bytes_per_second,
                      .latency = seen.latency};
  one.connected = Up(path);
  one.usable = path.reachable.ok() && (Ready(path) || path.last_error.ok());
  if (one.connected) {
    EndpointInfo info = path.link->endpoint->Describe();
    one.rails = static_cast<uint32_t>(info.rails.size());
    one.why = std::move(info.path);
    if (!path.link->proven) one.why += path.link->rails.WhyNone();
    one.each_rail = ExplainRails(*path.link, now);
  } else if (!path.reachable.ok()) {
    one.why = ToStd(path.reachable.message());
  } else {
    one.why = path.last_error.ok() ? "not connected yet: connects with the first transfer"
                                   : ToStd(path.last_error.message());
  }
  return one;
}

std::vector<RailExplanation> PathSet::ExplainRails(const Link& link, Time now) {
  std::vector<RailExplanation> rails;
  std::vector<RailInfo> infos = link.endpoint->Describe().rails;
  for (uint32_t rail = 0; rail < link.rails.size(); ++rail) {
    const bool up = link.rails.up(rail);
    RailInfo info = rail < infos.size() ? std::move(infos[rail]) : RailInfo{};
    rails.push_back({.name = std::move(info.name),
                     .up = up,
                     .bytes_per_second = link.choice.bytes_per_second(rail),
                     .round_trip = info.round_trip,
                     .down_for = up ? Duration{} : now - link.rails.since(rail),
                     .why = std::string(link.rails.why(rail).message())});
  }
  return rails;
}

// Marks the path that is chosen, and says why where that is not the order of the backends.
void PathSet::ExplainChoice(Explanation& out, Time now) const {
  // Of host memory, where any path takes it: of the rest ExplainMemory tells.
  const bool host = std::ranges::any_of(paths_, &Path::host);
  const auto first_usable = [&](const PathOrder& order) -> size_t {
    const auto at = std::ranges::find_if(order, [&](uint8_t index) {
      return out.paths[index].usable && paths_[index].host == host;
    });
    return at == order.end() ? out.paths.size() : *at;
  };
  const size_t chosen = first_usable(Preferred(kLargeTransfer, now));
  if (chosen == out.paths.size()) return;
  out.paths[chosen].chosen = true;
  for (size_t i = 0; i < chosen; ++i) {
    if (!out.paths[i].usable || paths_[i].host != host) continue;
    absl::StrAppend(&out.paths[chosen].why, "; taken before ", out.paths[i].backend,
                    ", which was seen slower in the last minute");
    break;
  }
  const size_t small = first_usable(Preferred(kSmallTransfer, now));
  if (small == chosen) return;
  absl::StrAppend(&out.paths[small].why, "; carries small transfers, seen sooner there than over ",
                  out.paths[chosen].backend);
}

MemoryExplanation PathSet::ExplainPair(const Explanation& paths, MemoryKind local,
                                       MemoryKind remote, Time now) const {
  MemoryExplanation out{.local = local, .remote = remote};
  const auto table = runtime_->memory.table();
  bool direct = false;
  std::string why;
  for (const uint8_t index : Preferred(kLargeTransfer, now)) {
    const Path& path = paths_[index];
    const std::string_view name = NameOf(path);
    if (!paths.paths[index].usable) continue;
    const bool here = AllReached(*table, local, path.host, [&](const RegionView& region) {
      return ReachesLocal(path, region);
    });
    const bool there =
        AllReached(*regions_->table(), remote, path.host,
                   [&](const RegionView& region) { return ReachesRemote(path, region); });
    if (here && there) return {.local = local, .remote = remote, .backend = std::string(name)};
    absl::StrAppend(&why, why.empty() ? "" : "; ", ToAbsl(name), " does not take ",
                    here ? "the peer's" : (there ? "this agent's" : "either side's"), " memory");
    absl::Status cause;
    if (!here && local == MemoryKind::kCuda) cause = runtime_->memory.WhyNotTaken(name);
    if (!there && remote == MemoryKind::kCuda && path.link) {
      cause.Update(path.link->WhyBeyond());
    }
    if (!cause.ok()) absl::StrAppend(&why, " (", cause.message(), ")");
    const bool lent = remote == MemoryKind::kHost || regions_->staging_buffers() > 0;
    const bool own = local == MemoryKind::kHost || runtime_->memory.StagesOver(path.backend);
    if (!path.host || !lent || !own || out.staged) continue;
    out.staged = true;
    out.backend = std::string(name);
    direct = path.link && path.link->stage && path.link->stage->open() &&
             local == MemoryKind::kCuda && remote == MemoryKind::kCuda;
  }
  out.why = why.empty() ? "no path to the peer is usable" : why;
  if (out.staged) {
    absl::StrAppend(&out.why, "; by way of ", runtime_->staging.Describe(),
                    direct ? ", straight to and from the peer's" : "");
  }
  return out;
}

// Where all memory is host memory the chosen path says it all.
void PathSet::ExplainMemory(Explanation& out, Time now) const {
  const auto cuda = [](MemoryKind kind) { return kind == MemoryKind::kCuda; };
  const bool here = HasCuda(*runtime_->memory.table());
  const bool there = HasCuda(*regions_->table());
  if (!here && !there) return;
  for (const MemoryKind local : {MemoryKind::kHost, MemoryKind::kCuda}) {
    if (cuda(local) && !here) continue;
    for (const MemoryKind remote : {MemoryKind::kHost, MemoryKind::kCuda}) {
      if (cuda(remote) && !there) continue;
      out.memory.push_back(ExplainPair(out, local, remote, now));
    }
  }
}

Explanation PathSet::Explain(Time now) const {
  Explanation out{.peer = metadata_->name,
                  .incarnation = metadata_->incarnation,
                  .host = metadata_->host.hostname};
  for (const Path& path : paths_) out.paths.push_back(ExplainPath(path, now));
  ExplainChoice(out, now);
  ExplainMemory(out, now);
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
