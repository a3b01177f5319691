#include "src/agent/engine/memory_registry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

std::string_view KindName(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "CUDA"; }

}  // namespace

absl::Status MemoryRegistry::CheckSpan(const MemorySpan& span) {
  const auto address = reinterpret_cast<uintptr_t>(span.data);
  if (span.data == nullptr) return absl::InvalidArgumentError("memory to register is null");
  if (span.bytes == 0) return absl::InvalidArgumentError("memory to register has zero bytes");
  if (span.bytes > std::numeric_limits<uintptr_t>::max() - address) {
    return absl::InvalidArgumentError(absl::StrCat("memory to register wraps the address space: ",
                                                   span.bytes, " bytes at 0x", absl::Hex(address)));
  }
  return absl::OkStatus();
}

MemoryRegistry::Made MemoryRegistry::Make(const MemorySpan& span, Access access,
                                          const Backends& backends) {
  Made made{.region = {.rkey = NewRkey(), .span = span, .access = access}, .results = {}};
  for (const auto& backend : backends) {
    made.results.emplace_back(nullptr);
    if (!backend->capabilities().Takes(span.kind)) continue;
    made.results.back() = backend->Register(made.region);
  }
  return made;
}

// The rkey is free only once no backend knows it.
void MemoryRegistry::Drop(Made made) {
  made.results.clear();
  ForgetRkey(made.region.rkey);
}

void MemoryRegistry::DropDiscarded() {
  std::lock_guard lock(mu_);
  discarded_.clear();
}

void MemoryRegistry::Discard(std::vector<Made> made) {
  std::lock_guard lock(mu_);
  for (Made& one : made) discarded_.push_back(std::move(one));
}

// A KV cache is tens of regions that are refused for the same reason, so only the first refusal of
// GPU memory is a warning. Host memory that is refused is always one.
void MemoryRegistry::TellNotTaken(const Backend& backend, MemoryKind kind,
                                  const absl::Status& why) {
  if (kind == MemoryKind::kHost) {
    Log(LogLevel::kWarning, "memory not registered: {}", ToStd(why.message()));
    return;
  }
  const bool first = told_.emplace(backend.name(), why).second;
  Log(first ? LogLevel::kWarning : LogLevel::kDebug,
      "GPU memory is not given to {}, which is reached by way of host memory instead: {}",
      backend.name(), ToStd(why.message()));
}

absl::StatusOr<std::vector<std::unique_ptr<Registration>>> MemoryRegistry::Holds(
    Made& made, const Backends& backends) {
  const MemoryKind kind = made.region.span.kind;
  absl::Status why = absl::InvalidArgumentError(
      absl::StrCat("no backend of this agent takes ", ToAbsl(KindName(kind)), " memory"));
  std::vector<std::unique_ptr<Registration>> holds;
  for (size_t i = 0; i < backends.size(); ++i) {
    holds.emplace_back();
    if (made.results[i].ok()) {
      holds.back() = *std::move(made.results[i]);
      continue;
    }
    why = WithName(made.results[i].status(), backends[i]->name());
    TellNotTaken(*backends[i], kind, why);
  }
  const auto taken = [](const auto& hold) { return hold != nullptr; };
  if (std::ranges::none_of(holds, taken)) return why;
  return holds;
}

absl::StatusOr<RegionId> MemoryRegistry::Add(Made made, const Backends& backends,
                                             const Staging& staging) {
  const LocalRegion& region = made.region;
  absl::Cleanup drop = [&] { Drop(std::move(made)); };
  if (entries_.size() >= kMaxRegions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the agent has ", kMaxRegions,
                     " regions already, which is the most; register larger ones (one region "
                     "may hold any number of blocks), or deregister some"));
  }
  auto holds = Holds(made, backends);
  if (!holds.ok()) {
    if (region.span.kind != MemoryKind::kCuda) return holds.status();
    if (!staging.possible.ok()) {
      return absl::Status(staging.possible.code(),
                          absl::StrCat(holds.status().message(),
                                       "; nor can it be staged: ", staging.possible.message()));
    }
    // No backend takes it, but it can be staged: the region is valid without any registration.
    holds.emplace(backends.size());
  }
  const RegionId id{++last_region_};
  ++live_;
  Entry entry{.region = region,
              .staged = std::make_unique<StagedMemory>(id, region.span),
              .is_staging = staging.is_staging,
              .holds = *std::move(holds)};
  // The addresses of a std::map's entries are stable.
  const Entry& added = entries_.emplace(id, std::move(entry)).first->second;
  rkeys_.emplace(region.rkey, &added);
  if (added.is_staging) staging_ = &added;
  std::move(drop).Cancel();
  return id;
}

void MemoryRegistry::Publish(std::span<const RegionId> regions) {
  std::lock_guard lock(mu_);
  for (const RegionId id : regions) {
    Entry& entry = entries_.at(id);
    entry.state = State::kOpen;
    const MemorySpan& span = entry.region.span;
    open_[id] = {.id = id,
                 .base = reinterpret_cast<uintptr_t>(span.data),
                 .bytes = span.bytes,
                 .access = entry.region.access,
                 .kind = span.kind};
  }
  table_.reset();
}

absl::Status MemoryRegistry::CheckOpen(RegionId id) const {
  const auto it = entries_.find(id);
  const bool open = it != entries_.end() && it->second.state == State::kOpen;
  if (open && !it->second.is_staging) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id),
                                          " is registered (deregistered before?)"));
}

absl::Status MemoryRegistry::Close(RegionId id) {
  if (auto status = CheckOpen(id); !status.ok()) return status;
  entries_.at(id).state = State::kClosed;
  --live_;
  std::lock_guard lock(mu_);
  open_.erase(id);
  table_.reset();
  return absl::OkStatus();
}

void MemoryRegistry::Remove(RegionId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  if (it->second.state == State::kHidden) --live_;
  const uint32_t rkey = it->second.region.rkey;
  rkeys_.erase(rkey);
  entries_.erase(it);
  ForgetRkey(rkey);
}

absl::Status MemoryRegistry::Use(const RegionTable& table, std::span<const uint32_t> regions) {
  // All are checked before any is counted.
  for (uint32_t index : regions) {
    const RegionId id = table.regions()[index].id;
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.state == State::kClosed) {
      return absl::FailedPreconditionError(
          absl::StrCat("local region ", static_cast<uint32_t>(id), " was deregistered"));
    }
  }
  UseAgain(table, regions);
  return absl::OkStatus();
}

void MemoryRegistry::UseAgain(const RegionTable& table, std::span<const uint32_t> regions) {
  for (uint32_t index : regions) ++entries_.at(table.regions()[index].id).uses;
}

void MemoryRegistry::Unuse(const RegionTable& table, std::span<const uint32_t> regions) {
  for (uint32_t index : regions) {
    const RegionId id = table.regions()[index].id;
    Entry& entry = entries_.at(id);
    if (--entry.uses == 0 && entry.state == State::kClosed) released_.push_back(id);
  }
}

bool MemoryRegistry::InUse(RegionId id) const {
  const auto it = entries_.find(id);
  return it != entries_.end() && it->second.uses > 0;
}

const Registration* MemoryRegistry::Find(RegionId id, size_t backend) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : it->second.holds[backend].get();
}

const StagedMemory* MemoryRegistry::FindStaged(RegionId id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : it->second.staged.get();
}

const StagedMemory* MemoryRegistry::FindGranted(uint32_t rkey, uint64_t address, uint64_t bytes,
                                                Access wanted) const {
  const auto it = rkeys_.find(rkey);
  // Peers are never granted the staging memory itself: a staged copy between its buffers could
  // overlap.
  if (it == rkeys_.end() || it->second->state != State::kOpen || it->second->is_staging)
    return nullptr;
  const LocalRegion& region = it->second->region;
  const RegionView view{.base = reinterpret_cast<uintptr_t>(region.span.data),
                        .bytes = region.span.bytes};
  const bool granted = Allows(region.access, wanted) && view.Contains(address, bytes);
  return granted ? it->second->staged.get() : nullptr;
}

std::vector<AgentMetadata::Region> MemoryRegistry::Describe(const Backends& backends) const {
  std::vector<AgentMetadata::Region> regions;
  for (const auto& [id, entry] : entries_) {
    if (entry.state != State::kOpen) continue;
    const MemorySpan& span = entry.region.span;
    AgentMetadata::Region out;
    out.staging = entry.is_staging;
    out.region = {.id = id,
                  .rkey = entry.region.rkey,
                  .base = reinterpret_cast<uintptr_t>(span.data),
                  .bytes = span.bytes,
                  .kind = span.kind,
                  .device_id = span.device_id,
                  .access = entry.region.access};
    for (size_t i = 0; i < entry.holds.size(); ++i) {
      if (entry.holds[i] == nullptr) continue;
      const std::string& key = entry.holds[i]->key;
      if (!key.empty()) out.keys.emplace(backends[i]->name(), key);
    }
    regions.push_back(std::move(out));
  }
  return regions;
}

RegionsFrame MemoryRegistry::Page(uint32_t first, uint32_t last, size_t most) const {
  RegionsFrame page{.first = first, .last = last};
  for (auto it = entries_.lower_bound(RegionId{first}); it != entries_.end(); ++it) {
    const auto id = static_cast<uint32_t>(it->first);
    if (id > last) break;
    if (it->second.state == State::kClosed) continue;
    if (!page.live.empty() && page.live.back().last + 1 == id) {
      page.live.back().last = id;
    } else if (page.live.size() < most) {
      page.live.push_back({.first = id, .last = id});
    } else {
      page.last = id - 1;
      break;
    }
  }
  return page;
}

std::shared_ptr<const RegionTable> MemoryRegistry::table() const {
  std::lock_guard lock(mu_);
  if (table_ == nullptr) {
    std::vector<RegionView> views;
    views.reserve(open_.size());
    for (const auto& [id, view] : open_) views.push_back(view);
    table_ = std::make_shared<const RegionTable>(std::move(views), "local");
  }
  return table_;
}

// Random, so that an rkey of an earlier incarnation does not fit by accident. FindGranted looks
// regions up by rkey alone, so it is unique.
uint32_t MemoryRegistry::NewRkey() {
  std::lock_guard lock(mu_);
  for (;;) {
    const uint32_t rkey = RandomNonZero32();
    if (used_rkeys_.insert(rkey).second) return rkey;
  }
}

void MemoryRegistry::ForgetRkey(uint32_t rkey) {
  std::lock_guard lock(mu_);
  used_rkeys_.erase(rkey);
}

}  // namespace kvxfer
