#include "src/agent/memory_registry.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/core/log.h"
#include "src/core/random.h"
#include "src/core/strings.h"
#include "src/core/wire_format.h"

namespace kvxfer {
namespace {

std::string_view KindName(MemoryKind kind) { return kind == MemoryKind::kHost ? "host" : "CUDA"; }

absl::Status CheckSpan(const MemorySpan& span) {
  const auto address = reinterpret_cast<uintptr_t>(span.data);
  if (span.data == nullptr) return absl::InvalidArgumentError("memory to register is null");
  if (span.bytes == 0) return absl::InvalidArgumentError("memory to register has zero bytes");
  if (span.bytes > std::numeric_limits<uintptr_t>::max() - address) {
    return absl::InvalidArgumentError(absl::StrCat("memory to register wraps the address space: ",
                                                   span.bytes, " bytes at 0x", absl::Hex(address)));
  }
  return absl::OkStatus();
}

bool Takes(const Backend& backend, MemoryKind kind) {
  return (backend.capabilities().memory_kinds & 1u << static_cast<uint32_t>(kind)) != 0;
}

}  // namespace

absl::StatusOr<MemoryRegistry::Ahead> MemoryRegistry::Prepare(const MemorySpan& span, Access access,
                                                              const Backends& backends) {
  if (auto status = CheckSpan(span); !status.ok()) return status;
  Ahead ahead;
  for (const auto& backend : backends) {
    ahead.push_back(nullptr);
    if (Takes(*backend, span.kind)) ahead.back() = backend->Prepare(span, access);
  }
  return ahead;
}

absl::StatusOr<RegionId> MemoryRegistry::Register(const MemorySpan& span, Access access,
                                                  const Backends& backends, const Ahead& ahead) {
  if (entries_.size() >= kMaxRegions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the agent has ", kMaxRegions,
                     " regions already; register larger ones, or deregister some"));
  }
  Entry entry;
  entry.region = {
      .id = RegionId{last_region_ + 1}, .rkey = NewRkey(), .span = span, .access = access};
  absl::Status why = absl::InvalidArgumentError(
      absl::StrCat("no backend of this agent takes ", ToAbsl(KindName(span.kind)), " memory"));
  bool any = false;
  for (size_t i = 0; i < backends.size(); ++i) {
    Backend& backend = *backends[i];
    std::unique_ptr<Registration> hold;
    if (Takes(backend, span.kind)) {
      absl::Status failed = ahead[i].status();
      if (failed.ok()) {
        entry.region.prepared = ahead[i]->get();
        auto made = backend.Register(entry.region);
        failed = made.status();
        if (made.ok()) hold = *std::move(made);
      }
      if (failed.ok()) {
        any = true;
      } else {
        why = Annotate(failed, backend.name());
        Log(LogLevel::kWarning, "memory not registered: {}", ToStd(why.message()));
      }
    }
    entry.holds.push_back(std::move(hold));
  }
  entry.region.prepared = nullptr;
  if (!any) return why;
  ++last_region_;
  const RegionId id = entry.region.id;
  rkeys_.insert(entry.region.rkey);
  {
    std::lock_guard lock(mu_);
    open_[id] = {.id = id,
                 .base = reinterpret_cast<uintptr_t>(span.data),
                 .bytes = span.bytes,
                 .access = access};
    table_.reset();
  }
  entries_.emplace(id, std::move(entry));
  return id;
}

absl::Status MemoryRegistry::Close(RegionId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id),
                                            " is registered (deregistered before?)"));
  }
  it->second.closed = true;
  std::lock_guard lock(mu_);
  open_.erase(id);
  table_.reset();
  return absl::OkStatus();
}

void MemoryRegistry::Remove(RegionId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  rkeys_.erase(it->second.region.rkey);
  entries_.erase(it);
}

absl::Status MemoryRegistry::Use(const RegionTable& table, std::span<const uint32_t> regions) {
  for (uint32_t index : regions) {
    const RegionId id = table.regions()[index].id;
    const auto it = entries_.find(id);
    if (it == entries_.end() || it->second.closed) {
      return absl::FailedPreconditionError(
          absl::StrCat("local region ", static_cast<uint32_t>(id), " was deregistered"));
    }
  }
  for (uint32_t index : regions) ++entries_.at(table.regions()[index].id).uses;
  return absl::OkStatus();
}

void MemoryRegistry::Unuse(const RegionTable& table, std::span<const uint32_t> regions) {
  for (uint32_t index : regions) --entries_.at(table.regions()[index].id).uses;
}

bool MemoryRegistry::InUse(RegionId id) const {
  const auto it = entries_.find(id);
  return it != entries_.end() && it->second.uses > 0;
}

const Registration* MemoryRegistry::Find(RegionId id, size_t backend) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : it->second.holds[backend].get();
}

std::vector<AgentMetadata::Region> MemoryRegistry::Describe(const Backends& backends) const {
  std::vector<AgentMetadata::Region> regions;
  for (const auto& [id, entry] : entries_) {
    if (entry.closed) continue;
    const MemorySpan& span = entry.region.span;
    AgentMetadata::Region out;
    out.region = {.id = id,
                  .rkey = entry.region.rkey,
                  .base = reinterpret_cast<uintptr_t>(span.data),
                  .bytes = span.bytes,
                  .kind = span.kind,
                  .device_id = span.device_id,
                  .access = entry.region.access};
    for (size_t i = 0; i < entry.holds.size(); ++i) {
      if (entry.holds[i] == nullptr) continue;
      std::string key = entry.holds[i]->Key();
      if (!key.empty()) out.keys.emplace(backends[i]->name(), std::move(key));
    }
    regions.push_back(std::move(out));
  }
  return regions;
}

std::vector<uint32_t> MemoryRegistry::LiveRegions() const {
  std::vector<uint32_t> live;
  for (const auto& [id, entry] : entries_) {
    if (!entry.closed) live.push_back(static_cast<uint32_t>(id));
  }
  return live;
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

uint32_t MemoryRegistry::NewRkey() const {
  for (;;) {
    const uint32_t rkey = RandomNonZero32();
    if (!rkeys_.contains(rkey)) return rkey;
  }
}

}  // namespace kvxfer
