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

}  // namespace

MemoryRegistry::MemoryRegistry() : table_(std::make_shared<RegionTable>()) {}

absl::StatusOr<RegionId> MemoryRegistry::Register(const MemorySpan& span, Access access,
                                                  const Backends& backends) {
  if (auto status = CheckSpan(span); !status.ok()) return status;
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
  for (const auto& backend : backends) {
    const uint32_t bit = 1u << static_cast<uint32_t>(span.kind);
    std::unique_ptr<Registration> hold;
    if ((backend->capabilities().memory_kinds & bit) != 0) {
      auto made = backend->Register(entry.region);
      if (made.ok()) {
        hold = *std::move(made);
        any = true;
      } else {
        why = Annotate(made.status(), backend->name());
        Log(LogLevel::kWarning, "memory not registered: {}", ToStd(why.message()));
      }
    }
    entry.holds.push_back(std::move(hold));
  }
  if (!any) return why;
  ++last_region_;
  const RegionId id = entry.region.id;
  entries_.emplace(id, std::move(entry));
  PublishTable();
  return id;
}

absl::Status MemoryRegistry::Close(RegionId id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) {
    return absl::NotFoundError(absl::StrCat("no region ", static_cast<uint32_t>(id),
                                            " is registered (deregistered before?)"));
  }
  it->second.closed = true;
  PublishTable();
  return absl::OkStatus();
}

void MemoryRegistry::Remove(RegionId id) { entries_.erase(id); }

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
  return table_;
}

uint32_t MemoryRegistry::NewRkey() const {
  for (;;) {
    const uint32_t rkey = RandomNonZero32();
    const bool taken = std::ranges::any_of(
        entries_, [rkey](const auto& entry) { return entry.second.region.rkey == rkey; });
    if (!taken) return rkey;
  }
}

void MemoryRegistry::PublishTable() {
  std::vector<RegionView> views;
  for (const auto& [id, entry] : entries_) {
    if (entry.closed) continue;
    views.push_back({.id = id,
                     .base = reinterpret_cast<uintptr_t>(entry.region.span.data),
                     .bytes = entry.region.span.bytes,
                     .access = entry.region.access});
  }
  auto table = std::make_shared<const RegionTable>(std::move(views), "local");
  std::lock_guard lock(mu_);
  table_ = std::move(table);
}

}  // namespace kvxfer
