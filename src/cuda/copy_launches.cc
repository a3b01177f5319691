#include "src/cuda/copy_launches.h"

#include <algorithm>
#include <cstring>
#include <span>

namespace kvxfer::cuda {
namespace {

size_t IdUnits(uint32_t count) {
  return UnitRing::Aligned((2 * size_t{count} + kIdsPerUnit - 1) / kIdsPerUnit);
}

bool SameIds(const PagedCopy& a, const PagedCopy& b) {
  return a.to.ids == b.to.ids && a.from.ids == b.from.ids && a.count == b.count;
}

}  // namespace

BatchSizes BatchSizes::Of(const CopyBatch& batch) {
  BatchSizes sizes;
  for (const Piece& piece : batch.pieces) sizes.bytes += piece.bytes;
  const PagedCopy* before = nullptr;
  for (const PagedCopy& copy : batch.paged) {
    sizes.paged_bytes += copy.total_bytes();
    if (before == nullptr || !SameIds(*before, copy)) {
      sizes.blocks += copy.count;
      sizes.id_units += IdUnits(copy.count);
      sizes.on_device |= copy.to.on_device || copy.from.on_device;
    }
    before = &copy;
  }
  sizes.bytes += sizes.paged_bytes;
  return sizes;
}

absl::Status CopyLaunches::Launch(const CopyBatch& batch, const CopyShape& shape,
                                  api::CUstream stream, uint64_t refused, size_t& at, bool& begun) {
  params_.refused = refused;
  parts_ = grids_ = 0;
  last_grid_ = nullptr;
  for (std::span<const Piece> pieces = batch.pieces; !pieces.empty();) {
    const auto some = pieces.first(std::min(kPiecesPerLaunch, pieces.size()));
    pieces = pieces.subspan(some.size());
    const size_t units = MakeUnits(some, shape.unit_bytes, list_ + at);
    if (units == 0) continue;
    params_.parts[parts_++] = {.list = reinterpret_cast<uint64_t>(list_ + at),
                               .units = static_cast<uint32_t>(units)};
    // Each launch gets its own aligned part of the list (UnitRing::kAlign).
    at += UnitRing::Aligned(units);
    if (pieces.empty()) break;  // it goes with the paged blocks
    if (auto status = LaunchParts(shape, stream, begun); !status.ok()) return status;
  }
  const PagedCopy* before = nullptr;
  for (const PagedCopy& copy : batch.paged) {
    if (copy.total_bytes() == 0) continue;
    if (full()) {
      if (auto status = LaunchParts(shape, stream, begun); !status.ok()) return status;
    }
    AddPaged(copy, before, shape, at);
    before = &copy;
  }
  return LaunchParts(shape, stream, begun);
}

// `before`: the part that was added before, in this batch; it may share its ids.
void CopyLaunches::AddPaged(const PagedCopy& copy, const PagedCopy* before, const CopyShape& shape,
                            size_t& at) {
  CopyPart part = MakePart(copy, shape.unit_bytes);
  if (before == nullptr || !SameIds(*before, copy)) {
    auto* const ids = reinterpret_cast<uint32_t*>(list_ + at);
    const auto keep = [count = copy.count](const PagedCopy::Side& side, uint32_t* to) {
      if (side.on_device) return reinterpret_cast<uint64_t>(side.ids);
      std::memcpy(to, side.ids, count * sizeof(uint32_t));
      return reinterpret_cast<uint64_t>(to);
    };
    to_ids_ = keep(copy.to, ids);
    from_ids_ = keep(copy.from, ids + copy.count);
    at += IdUnits(copy.count);
  }
  part.to_ids = to_ids_;
  part.from_ids = from_ids_;
  if (copy.pieces != nullptr) {
    if (last_grid_ != copy.pieces) {
      params_.grids[grids_++] = MakeGrid(*copy.pieces, copy.to_local);
      last_grid_ = copy.pieces;
    }
    part.grid = static_cast<uint16_t>(grids_ - 1);
  }
  params_.parts[parts_++] = part;
}

absl::Status CopyLaunches::LaunchParts(const CopyShape& shape, api::CUstream stream, bool& begun) {
  params_.count = 0;
  for (uint32_t i = 0; i < parts_; ++i) params_.count += params_.parts[i].units;
  parts_ = grids_ = 0;
  last_grid_ = nullptr;
  if (params_.count == 0) return absl::OkStatus();
  params_.per_group = shape.PerGroup(params_.count);
  absl::Status status =
      kernel_->Launch(stream, params_, shape.Blocks(params_.count, params_.per_group));
  begun |= status.ok();
  return status;
}

}  // namespace kvxfer::cuda
