// Which memory a path reaches, and the link that follows from it for a transfer.
#include <algorithm>
#include <utility>

#include "src/agent/session/path_set.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {

bool PathSet::ReachesLocal(const Path& path, const RegionView& region) const {
  if (region.kind == MemoryKind::kHost) return path.host;
  return runtime_->memory.Find(region.id, path.backend) != nullptr;
}

// A backend that takes GPU memory natively has a key for each such region. One that is gone by now
// is refused by name later.
bool PathSet::ReachesRemote(const Path& path, const RegionView& region) const {
  if (region.kind == MemoryKind::kHost) return path.host;
  if (path.link && !path.link->WhyBeyond(region.id).ok()) return false;
  const AgentMetadata::Region* const known = regions_->Find(region.id);
  return known == nullptr || known->keys.contains(std::string(NameOf(path)));
}

absl::Status PathSet::WhyBeyond(const Link& link, const internal::TransferRecord& record) {
  if (link.WhyBeyond().ok()) return absl::OkStatus();
  for (const uint32_t index : record.blocks.remote_regions()) {
    auto why = link.WhyBeyond(record.remote->regions()[index].id);
    if (!why.ok()) return why;
  }
  return absl::OkStatus();
}

PathSet::Reach PathSet::ReachOf(const Path& path, const internal::TransferRecord& record) const {
  if (record.blocks.total_bytes() == 0) return Reach::kNative;
  if (!record.cuda) return path.host ? Reach::kNative : Reach::kNone;
  const bool ids_on_gpu = record.blocks.ids_on_gpu();
  if (ids_on_gpu && !runtime_->backends[path.backend]->capabilities().device_ids) {
    return Reach::kNone;
  }
  bool native = true;
  bool staged_here = false;
  bool staged_there = false;
  for (const uint32_t index : record.blocks.local_regions()) {
    const RegionView& region = record.local->regions()[index];
    native &= ReachesLocal(path, region);
    staged_here |= region.kind == MemoryKind::kCuda;
  }
  for (const uint32_t index : record.blocks.remote_regions()) {
    const RegionView& region = record.remote->regions()[index];
    native &= ReachesRemote(path, region);
    staged_there |= region.kind == MemoryKind::kCuda;
  }
  if (native || ids_on_gpu) return native ? Reach::kNative : Reach::kNone;
  const bool can = path.host && (!staged_here || runtime_->memory.StagesOver(path.backend)) &&
                   (!staged_there || regions_->staging_buffers() > 0);
  return can ? Reach::kStaged : Reach::kNone;
}

bool PathSet::Stages(const Link& link, const internal::TransferRecord& record) const {
  const auto its = [&](const Path& path) { return path.link.get() == &link; };
  return record.cuda && ReachOf(*std::ranges::find_if(paths_, its), record) == Reach::kStaged;
}

// A path that reaches the memory itself, or else one that is staged over. The first of these that
// fails gives way to the second, with a warning (TellStaged), and is tried again beside it.
absl::StatusOr<Link*> PathSet::LinkFor(const internal::TransferRecord& record, Time now) {
  const std::string& backend = record.options.backend;
  const uint64_t bytes = record.blocks.total_bytes();
  if (runtime_->options.control != ControlCarrier::kAuto && !user_->MaySpeak()) {
    const auto carrier = LinkForMessages(record.posted, now);
    if (!carrier.ok()) return carrier.status();
    return nullptr;
  }
  const auto is = [&](Reach reach) {
    return [this, &record, reach](const Path& path) { return ReachOf(path, record) == reach; };
  };
  const auto staged = is(Reach::kStaged);
  Link* second = nullptr;
  if (record.cuda) {
    for (const uint8_t index : Preferred(bytes, now)) {
      const Path& path = paths_[index];
      if (second == nullptr && IsOf(path, backend) && Ready(path) && staged(path)) {
        second = path.link.get();
      }
    }
  }
  auto link = LinkFor(backend, bytes, record.posted, now, is(Reach::kNative), second);
  if (link.ok() || !record.cuda) return link;
  const auto may = [&](const Path& path) { return IsOf(path, backend) && staged(path); };
  if (std::ranges::any_of(paths_, may)) return LinkFor(backend, bytes, record.posted, now, staged);
  return NoWay(record, link.status());
}

// Why a transfer of GPU memory can go no way, where no path could be made that reaches it.
absl::Status PathSet::NoWay(const internal::TransferRecord& record,
                            const absl::Status& unreachable) const {
  const std::string& backend = record.options.backend;
  absl::Status why = absl::FailedPreconditionError(absl::StrCat("peer ", metadata_->name));
  bool any = false;
  for (const Path& path : paths_) {
    if (!IsOf(path, backend)) continue;
    any = true;
    if (ReachOf(path, record) == Reach::kNative) why = unreachable;
    const absl::Status beyond = path.link ? WhyBeyond(*path.link, record) : absl::OkStatus();
    if (!beyond.ok()) why = beyond;
  }
  if (!any) return unreachable;
  const auto cuda = [](const auto& table, std::span<const uint32_t> regions) {
    return std::ranges::any_of(
        regions, [&](uint32_t index) { return table->regions()[index].kind == MemoryKind::kCuda; });
  };
  std::string_view no_stage = backend.empty() ? "no backend in common takes host memory"
                                              : "that backend takes no host memory";
  if (cuda(record.remote, record.blocks.remote_regions()) && regions_->staging_buffers() == 0) {
    no_stage = "the peer lends no staging memory";
  }
  if (cuda(record.local, record.blocks.local_regions()) && !runtime_->staging.open()) {
    no_stage = "this agent has none (AgentOptions::staging_bytes, KVXFER_STAGING_BYTES)";
  }
  if (record.blocks.ids_on_gpu()) {
    no_stage = "its ids are in GPU memory, where only a GPU reads them; bring them to the host";
  }
  return WithMessage(why, absl::StrCat(why.message(),
                                       ": no backend takes this GPU memory at both ends, "
                                       "and it cannot be staged: ",
                                       ToAbsl(no_stage)));
}

void PathSet::TellStaged(const internal::TransferRecord& record, const Link& link) {
  const std::string name(runtime_->backends[link.backend]->name());
  if (std::exchange(logged_staged_, name) == name) return;
  std::string why;
  for (const Path& path : paths_) {
    absl::Status cause = path.link ? WhyBeyond(*path.link, record) : absl::OkStatus();
    if (ReachOf(path, record) == Reach::kNative) cause.Update(path.last_error);
    if (cause.ok()) continue;
    absl::StrAppend(&why, "; ", ToAbsl(NameOf(path)), ": ", cause.message());
  }
  Log(LogLevel::kWarning,
      "peer {}: GPU memory goes over {} by way of host memory, for no backend that reaches the "
      "peer takes it at both ends{}",
      metadata_->name, name, why);
}

}  // namespace kvxfer
