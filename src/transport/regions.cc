#include "src/transport/regions.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/codec.h"

namespace kvxfer::net {

template <typename Io>
void Fields(Io& io, wire::Ref<Io, WireRun> run) {
  io.Int("address", run.address);
  io.Int("bytes", run.bytes);
  io.Int("rkey", run.rkey);
}

void Encode(const WireRun& run, std::span<std::byte, kWireRunBytes> out) {
  wire::EncodeFixed(run, out.data());
}

WireRun DecodeWireRun(std::span<const std::byte, kWireRunBytes> in) {
  wire::FixedReader reader(in.data());
  WireRun run;
  Fields(reader, run);
  return run;
}

Region::Region(RegionMap* regions, const LocalRegion& region)
    : regions_(regions),
      rkey_(region.rkey),
      base_(reinterpret_cast<uint64_t>(region.span.data)),
      bytes_(region.span.bytes),
      access_(region.access) {}

Region::~Region() {
  if (regions_ != nullptr) regions_->Erase(*this);
}

std::string Region::WhyNot(const WireRun& run, Access wanted) const {
  if (!Allows(access_, wanted)) {
    return absl::StrCat("the region does not allow remote ",
                        wanted == Access::kRemoteRead ? "reads" : "writes");
  }
  // Distances instead of addresses: the text travels to the peer and into logs, and addresses must
  // not.
  const bool before = run.address < base_;
  return absl::StrCat("outside of the region, which has ", bytes_, " bytes: ", run.bytes,
                      " bytes asked for, which begin ",
                      before ? base_ - run.address : run.address - base_, " bytes ",
                      before ? "before it" : "behind its beginning");
}

absl::StatusOr<std::unique_ptr<RemoteKey>> RkeyOnly::Of(const RemoteRegion& region,
                                                        std::string_view backend,
                                                        std::string_view peer) {
  if (region.rkey != 0) return std::make_unique<RkeyOnly>(region.rkey);
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(backend), ": region ",
                                                 static_cast<uint32_t>(region.id), " of ",
                                                 ToAbsl(peer), " has no rkey"));
}

bool HaveKeys(const BlockRange& blocks) {
  if (blocks.bytes == 0) return true;
  const BlockView& view = *blocks.view;
  const BlockPosition& first = blocks.first;
  // `left`: bytes from the beginning of the first descriptor or pair to the end of the range.
  uint64_t left = blocks.bytes + first.offset;
  if (view.pairs.empty()) {
    for (uint32_t i = first.id;; ++i) {
      const Block& block = view.descriptors[i];
      if (block.bytes > 0 && view.keys[block.remote_region] == nullptr) return false;
      if (left <= block.bytes) return true;
      left -= block.bytes;
    }
  }
  for (uint32_t i = first.pair;; ++i) {
    const BlockPair& pair = view.pairs[i];
    const uint64_t block_bytes = pair.local.block_bytes;
    const uint64_t bytes = pair.id_count * block_bytes;
    if (i == first.pair) {
      left += first.id * block_bytes;
      if (pair.pieces != BlockPair::kOnePiece) {
        left += first.piece * view.block_pieces[pair.pieces].bytes;
      }
    }
    if (bytes > 0 && view.keys[pair.remote_region] == nullptr) return false;
    if (left <= bytes) return true;
    left -= bytes;
  }
}

RegionMap::~RegionMap() {
  // Registrations may outlive the backend; they must not call back into the map.
  const std::lock_guard lock(mu_);
  for (auto& [rkey, region] : all_) region->regions_ = nullptr;
}

absl::StatusOr<std::unique_ptr<Registration>> RegionMap::Register(const LocalRegion& region,
                                                                  std::string_view backend) {
  const MemorySpan& span = region.span;
  if (span.kind != MemoryKind::kHost) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(backend),
        ": only host memory can be registered; GPU memory goes by way of it (staging), "
        "or over a backend that reaches it (cuda_ipc, verbs, libfabric)"));
  }
  if (span.data == nullptr || span.bytes == 0 || region.rkey == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(backend), ": a region needs an address, bytes and an rkey"));
  }
  const std::lock_guard lock(mu_);
  if (all_.contains(region.rkey)) {
    return absl::AlreadyExistsError(
        absl::StrCat(ToAbsl(backend), ": the rkey of the region is that of another one"));
  }
  auto out = std::make_unique<Region>(this, region);
  all_.emplace(region.rkey, out.get());
  return out;
}

const Region* RegionCache::Find(uint32_t rkey) {
  // Direct-mapped: a stream of runs mostly names few regions.
  const Region*& recent = recent_[rkey % recent_.size()];
  if (recent != nullptr && recent->rkey() == rkey) return recent;
  const auto it = named_.find(rkey);
  if (it == named_.end()) return nullptr;
  return recent = it->second;
}

void RegionCache::Add(const Region* region) {
  named_.emplace(region->rkey(), region);
  recent_[region->rkey() % recent_.size()] = region;
}

void RegionCache::Forget(const Region& region) {
  named_.erase(region.rkey());
  const Region*& recent = recent_[region.rkey() % recent_.size()];
  if (recent == &region) recent = nullptr;
}

const Region* RegionMap::Find(uint32_t rkey, RegionCache& cache) {
  if (const Region* const known = cache.Find(rkey); known != nullptr) return known;
  // A peer names the region for the first time, or no region has that rkey.
  const std::lock_guard lock(mu_);
  const auto it = all_.find(rkey);
  if (it == all_.end()) return nullptr;
  cache.Add(it->second);
  return it->second;
}

void RegionMap::Erase(const Region& region) {
  {
    const std::lock_guard lock(mu_);
    all_.erase(region.rkey());
  }
  cache_.Forget(region);
  if (on_closed_) on_closed_(&region);
}

absl::StatusOr<const Region*> RegionMap::Check(const WireRun& run, Access wanted,
                                               RegionCache& cache) {
  const Region* const region = Find(run.rkey, cache);
  if (region != nullptr && region->Grants(run, wanted)) return region;
  // The reason names no address; see WhyNot.
  return absl::PermissionDeniedError(
      region == nullptr ? "no region has that rkey (deregistered, or of other metadata)"
                        : region->WhyNot(run, wanted));
}

}  // namespace kvxfer::net
