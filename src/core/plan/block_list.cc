// Checks the arguments of Write and Read completely, once, on the caller's thread, before anything
// is queued.
#include "src/core/plan/block_list.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

#include "src/core/base/strings.h"
#include "src/core/plan/block_overlap.h"

namespace kvxfer {
namespace {

constexpr std::string_view kLocal = "local";
constexpr std::string_view kRemote = "remote";

std::string Named(std::string_view side, size_t index) {
  return absl::StrCat(ToAbsl(side), "[", index, "]");
}

absl::Status NoBlocks(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("no blocks: ", ToAbsl(what), " is empty; use Notify for a notification alone"));
}

absl::Status UnequalLengths(std::string_view left, size_t left_size, std::string_view right,
                            size_t right_size) {
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(left), " has ", left_size, " entries and ", ToAbsl(right), " has ", right_size,
      ": entry i of one goes with entry i of the other, so they must be of equal length"));
}

absl::Status UnequalBytes(size_t index, uint64_t local, uint64_t remote) {
  return absl::InvalidArgumentError(absl::StrCat("local[", index, "] has blocks of ", local,
                                                 " bytes and remote[", index, "] of ", remote,
                                                 ": they must be equal"));
}

// The region that contains [address, address + bytes); kNoRegion for zero bytes.
absl::StatusOr<uint32_t> FindRegion(std::string_view side, size_t index, uint64_t address,
                                    uint64_t bytes, Access wanted, const RegionTable& table) {
  if (bytes == 0) return kNoRegion;
  if (address == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Named(side, index), " of ", bytes, " bytes has a null address"));
  }
  absl::StatusOr<uint32_t> found = table.Find(address, bytes, wanted);
  if (!found.ok()) return Annotate(found.status(), Named(side, index));
  return found;
}

// The same for a descriptor that follows another one. Most lie in the same region (`before`), which
// avoids the search.
absl::StatusOr<uint32_t> FindNext(std::string_view side, size_t index, const Descriptor& descriptor,
                                  Access wanted, const RegionTable& table, uint32_t before) {
  if (descriptor.address != 0 &&
      table.IsFound(before, descriptor.address, descriptor.bytes, wanted)) {
    return before;
  }
  return FindRegion(side, index, descriptor.address, descriptor.bytes, wanted, table);
}

// Bytes from the base to the end of the last block. Returns an error if an address up to there
// overflows, so later address arithmetic needs no check.
absl::StatusOr<uint64_t> ExtentBytes(std::string_view side, size_t index,
                                     const PagedRegion& region) {
  if (region.count == 0) return 0;
  if (region.count > 1 && region.stride < region.block_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Named(side, index), ": stride ", region.stride,
                                                   " is below block_bytes ", region.block_bytes,
                                                   ": its blocks would overlap"));
  }
  uint64_t bytes = 0;
  uint64_t end = 0;
  if (__builtin_mul_overflow(region.count - 1, region.stride, &bytes) ||
      __builtin_add_overflow(bytes, region.block_bytes, &bytes) ||
      __builtin_add_overflow(region.base, bytes, &end)) {
    return absl::InvalidArgumentError(
        absl::StrCat(Named(side, index), ": ", region.count, " blocks of ", region.block_bytes,
                     " bytes, stride ", region.stride, ", from 0x", absl::Hex(region.base),
                     " end beyond the address space"));
  }
  return bytes;
}

// `before`: the region that the one before lies in. Most lie in the same one, which avoids the
// search.
absl::StatusOr<uint32_t> PlacePaged(std::string_view side, size_t index, const PagedRegion& region,
                                    Access wanted, const RegionTable& table, uint32_t before) {
  const absl::StatusOr<uint64_t> bytes = ExtentBytes(side, index, region);
  if (!bytes.ok()) return bytes.status();
  if (region.block_bytes > 0 && region.base != 0 &&
      table.IsFound(before, region.base, *bytes, wanted)) {
    return before;
  }
  // Zero-byte blocks touch no memory, so they need no region, however many there are.
  return FindRegion(side, index, region.base, region.block_bytes == 0 ? 0 : *bytes, wanted, table);
}

// Four ids, for the compiler's vector arithmetic.
using FourIds [[gnu::vector_size(16)]] = uint32_t;

struct CopiedIds {
  uint32_t bound = 0;     // no id exceeds it: all of them or-ed together
  bool in_range = false;  // each of them is below the count
};
// Copies `ids`. Whatever the caller does with its own meanwhile, only the copy is checked and used.
// `count` is at least 1. Ids are compared four at a time, for their number is what a transfer
// costs.
CopiedIds CopyIds(std::span<const uint32_t> ids, uint64_t count, uint32_t* to) {
  const auto last = static_cast<uint32_t>(std::min<uint64_t>(count - 1, INT32_MAX));
  const FourIds lasts = {last, last, last, last};
  FourIds bits = {};
  FourIds beyond = {};  // the highest bit of each: some id is above `last`
  size_t i = 0;
  for (; i + 4 <= ids.size(); i += 4) {
    FourIds some;
    std::memcpy(&some, ids.data() + i, sizeof(some));
    std::memcpy(to + i, &some, sizeof(some));
    bits |= some;
    beyond |= lasts - some;
  }
  CopiedIds copied{.bound = (bits[0] | bits[1]) | (bits[2] | bits[3])};
  uint32_t sign = (beyond[0] | beyond[1]) | (beyond[2] | beyond[3]);
  for (; i < ids.size(); ++i) {
    to[i] = ids[i];
    copied.bound |= to[i];
    sign |= last - to[i];
  }
  // An id of 2^31 or more is in `bound`.
  copied.in_range = ((sign | copied.bound) >> 31) == 0;
  return copied;
}

// The region of one side with the fewest blocks.
template <typename Pairs>
size_t SmallestRegion(const Pairs& pairs, PagedRegion BlockPair::*region_of) {
  size_t smallest = 0;
  for (size_t i = 1; i < pairs.size(); ++i) {
    if ((pairs[i].*region_of).count < (pairs[smallest].*region_of).count) smallest = i;
  }
  return smallest;
}

// InvalidArgument unless every id is below `count`, the number of blocks of region `region`.
absl::Status CheckIdsInRange(std::string_view side, std::span<const uint32_t> ids, size_t region,
                             uint64_t count) {
  const auto at = std::find_if(ids.begin(), ids.end(), [&](uint32_t id) { return id >= count; });
  if (at == ids.end()) return absl::OkStatus();
  const std::string valid =
      count == 0 ? std::string(" has no blocks") : absl::StrCat(" has blocks 0 to ", count - 1);
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(side), "_ids[", at - ids.begin(), "] is ",
                                                 *at, ", but ", Named(side, region), valid));
}

// One side of a list of paged blocks.
struct Side {
  std::string_view name;
  std::span<const PagedRegion> regions;
  std::span<const uint32_t> ids;
  DeviceIds device_ids;

  size_t count() const { return device_ids.address != 0 ? device_ids.count : ids.size(); }
};
Side LocalOf(const PagedBlocks& blocks) {
  return {kLocal, blocks.local, blocks.local_ids, blocks.local_device_ids};
}
Side RemoteOf(const PagedBlocks& blocks) {
  return {kRemote, blocks.remote, blocks.remote_ids, blocks.remote_device_ids};
}

// Copies the ids of one side, and checks the copy. Returns a number that no id exceeds.
template <typename Pairs>
absl::StatusOr<uint32_t> KeepIds(const Side& side, const Pairs& pairs,
                                 PagedRegion BlockPair::*region_of, uint32_t* to) {
  const size_t region = SmallestRegion(pairs, region_of);
  const uint64_t count = (pairs[region].*region_of).count;
  if (side.device_ids.address != 0) {
    if (count > 0) return 0;
    return absl::InvalidArgumentError(
        absl::StrCat(Named(side.name, region), " has no blocks, and there are ids in GPU memory"));
  }
  const CopiedIds copied = CopyIds(side.ids, std::max<uint64_t>(count, 1), to);
  if (copied.in_range && count > 0) return copied.bound;
  absl::Status status = CheckIdsInRange(side.name, {to, side.ids.size()}, region, count);
  if (!status.ok()) return status;
  return copied.bound;
}

// Checks the side that is written: no byte of it may be written twice. `kept`: the copy of its ids,
// none of which exceeds `bound`. Which ids occur in GPU memory, and how often, is not known.
absl::Status CheckDestination(const Side& side, std::span<const uint32_t> kept, uint32_t bound) {
  const bool any_bytes = std::any_of(side.regions.begin(), side.regions.end(),
                                     [](const PagedRegion& r) { return r.block_bytes > 0; });
  if (!any_bytes) return absl::OkStatus();
  if (side.device_ids.address != 0) return CheckRegionsDisjoint(side.name, side.regions);
  if (absl::Status status = CheckIdsDistinct(side.name, kept, bound); !status.ok()) return status;
  return CheckPagedDisjoint(side.name, side.regions, kept);
}

// Where ids in GPU memory lie; they are the agent's own, of either side.
absl::StatusOr<DeviceIdList> PlaceDeviceIds(const Side& side, const RegionTable& local) {
  const DeviceIds& ids = side.device_ids;
  if (ids.address == 0) return DeviceIdList{};
  const std::string name = absl::StrCat(ToAbsl(side.name), "_device_ids");
  if (ids.address % sizeof(uint32_t) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": 0x", absl::Hex(ids.address), " is no multiple of 4"));
  }
  const auto region = local.Find(ids.address, ids.count * sizeof(uint32_t), Access::kNone);
  if (!region.ok()) return Annotate(region.status(), name);
  if (local.regions()[*region].kind != MemoryKind::kCuda) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " are in host memory: pass them as ", ToAbsl(side.name), "_ids"));
  }
  return DeviceIdList{.at = ids.address, .region = *region};
}

Access RemoteRight(Direction direction) {
  return direction == Direction::kWrite ? Access::kRemoteWrite : Access::kRemoteRead;
}

absl::Status CheckPagedShape(const PagedBlocks& blocks) {
  if (blocks.local.size() != blocks.remote.size()) {
    return UnequalLengths(kLocal, blocks.local.size(), kRemote, blocks.remote.size());
  }
  for (const Side& side : {LocalOf(blocks), RemoteOf(blocks)}) {
    if (side.device_ids.address == 0 || side.ids.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat("there are both ", ToAbsl(side.name),
                                                   "_ids and ", ToAbsl(side.name), "_device_ids"));
  }
  const size_t count = LocalOf(blocks).count();
  if (count != RemoteOf(blocks).count()) {
    return UnequalLengths("local_ids", count, "remote_ids", RemoteOf(blocks).count());
  }
  if (blocks.local.empty()) return NoBlocks("the list of paged regions");
  if (count == 0) return NoBlocks("the list of ids");
  // BlockPair::id_count and BlockPair::first_id have 32 bits.
  if (count > UINT32_MAX) return absl::InvalidArgumentError("more than 2^32 - 1 ids");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BlockList> BlockList::FromPaged(const PagedBlocks& blocks, Direction direction,
                                               const RegionTable& local, const RegionTable& remote,
                                               IdPool& pool) {
  absl::StatusOr<BlockList> list(absl::in_place);
  absl::Status status = list->FillPaged(blocks, direction, local, remote, pool);
  if (!status.ok()) list = std::move(status);
  return list;
}

absl::StatusOr<BlockList> BlockList::FromDescriptors(const DescriptorBlocks& blocks,
                                                     Direction direction, const RegionTable& local,
                                                     const RegionTable& remote) {
  absl::StatusOr<BlockList> list(absl::in_place);
  absl::Status status = list->FillDescriptors(blocks, direction, local, remote);
  if (!status.ok()) list = std::move(status);
  return list;
}

absl::Status BlockList::FillPaged(const PagedBlocks& blocks, Direction direction,
                                  const RegionTable& local, const RegionTable& remote,
                                  IdPool& pool) {
  if (absl::Status status = CheckPagedShape(blocks); !status.ok()) return status;
  const Side here = LocalOf(blocks);
  const Side there = RemoteOf(blocks);
  pairs_.reserve(blocks.local.size());
  RegionSet local_regions(local);
  RegionSet remote_regions(remote);
  for (const auto& [side, list] :
       {std::pair(&here, &local_device_ids_), {&there, &remote_device_ids_}}) {
    const auto placed = PlaceDeviceIds(*side, local);
    if (!placed.ok()) return placed.status();
    *list = *placed;
    if (list->at != 0) local_regions.Add(list->region);
  }
  uint32_t local_region = kNoRegion;
  uint32_t remote_region = kNoRegion;
  for (size_t i = 0; i < blocks.local.size(); ++i) {
    BlockPair pair{.local = blocks.local[i],
                   .remote = blocks.remote[i],
                   .id_count = static_cast<uint32_t>(here.count())};
    if (pair.local.block_bytes != pair.remote.block_bytes) {
      return UnequalBytes(i, pair.local.block_bytes, pair.remote.block_bytes);
    }
    // Access::kNone: the agent itself may read and write every region that it registered.
    auto region = PlacePaged(kLocal, i, pair.local, Access::kNone, local, local_region);
    if (!region.ok()) return region.status();
    local_regions.Add(pair.local_region = local_region = *region);
    region = PlacePaged(kRemote, i, pair.remote, RemoteRight(direction), remote, remote_region);
    if (!region.ok()) return region.status();
    remote_regions.Add(pair.remote_region = remote_region = *region);
    pairs_.push_back(pair);
  }
  uint32_t* const ids = TakeIds(here.count(), pool);
  const auto local_bound = KeepIds(here, pairs_, &BlockPair::local, ids);
  if (!local_bound.ok()) return local_bound.status();
  const auto remote_bound = KeepIds(there, pairs_, &BlockPair::remote, ids + id_count_);
  if (!remote_bound.ok()) return remote_bound.status();
  // The costly check comes last.
  absl::Status status = direction == Direction::kWrite
                            ? CheckDestination(there, remote_ids(), *remote_bound)
                            : CheckDestination(here, local_ids(), *local_bound);
  if (!status.ok()) return status;
  local_regions_ = local_regions.Ascending();
  remote_regions_ = remote_regions.Ascending();
  return SetTotals();
}

absl::Status BlockList::FillDescriptors(const DescriptorBlocks& blocks, Direction direction,
                                        const RegionTable& local, const RegionTable& remote) {
  if (blocks.local.size() != blocks.remote.size()) {
    return UnequalLengths(kLocal, blocks.local.size(), kRemote, blocks.remote.size());
  }
  if (blocks.local.empty()) return NoBlocks("the list of descriptors");
  // BlockPosition::id has 32 bits.
  if (blocks.local.size() > UINT32_MAX) {
    return absl::InvalidArgumentError("more than 2^32 - 1 descriptors");
  }
  descriptors_.reserve(blocks.local.size());
  RegionSet local_regions(local);
  RegionSet remote_regions(remote);
  const Access right = RemoteRight(direction);
  uint32_t local_region = kNoRegion;
  uint32_t remote_region = kNoRegion;
  for (size_t i = 0; i < blocks.local.size(); ++i) {
    const Descriptor& from = blocks.local[i];
    const Descriptor& to = blocks.remote[i];
    if (from.bytes != to.bytes) return UnequalBytes(i, from.bytes, to.bytes);
    auto found = FindNext(kLocal, i, from, Access::kNone, local, local_region);
    if (!found.ok()) return found.status();
    local_regions.Add(local_region = *found);
    found = FindNext(kRemote, i, to, right, remote, remote_region);
    if (!found.ok()) return found.status();
    remote_regions.Add(remote_region = *found);
    descriptors_.push_back({.local = from.address,
                            .remote = to.address,
                            .bytes = from.bytes,
                            .local_region = local_region,
                            .remote_region = remote_region});
  }
  absl::Status status = CheckDescriptorsDisjoint(direction, descriptors_);
  if (!status.ok()) return status;
  local_regions_ = local_regions.Ascending();
  remote_regions_ = remote_regions.Ascending();
  return SetTotals();
}

uint32_t* BlockList::TakeIds(size_t count, IdPool& pool) {
  id_count_ = count;
  if (count <= kFewIds) return few_ids_.data();
  ids_ = pool.Take(2 * count);
  return ids_.ids.get();
}

absl::Status BlockList::SetTotals() {
  bool overflow = false;
  size_ = descriptors_.size();
  for (const BlockPair& pair : pairs_) {
    uint64_t bytes = 0;
    overflow |= __builtin_mul_overflow(pair.local.block_bytes, pair.id_count, &bytes);
    overflow |= __builtin_add_overflow(total_bytes_, bytes, &total_bytes_);
    size_ += pair.id_count;
  }
  for (const Block& block : descriptors_) {
    overflow |= __builtin_add_overflow(total_bytes_, block.bytes, &total_bytes_);
  }
  // No address space holds that many bytes, but a Read or Write may name one source block many
  // times.
  if (overflow)
    return absl::InvalidArgumentError("the blocks have more than 2^64 - 1 bytes in all");
  return absl::OkStatus();
}

}  // namespace kvxfer
