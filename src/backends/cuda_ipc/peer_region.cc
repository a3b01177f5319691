#include "src/backends/cuda_ipc/peer_region.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer::cuda_ipc {
namespace {

// CUDA allocates no smaller units on average; a region with more parts than that is refused.
constexpr uint64_t kMinPart = 4096;

bool EndsWithin(uint64_t base, uint64_t bytes) { return bytes > 0 && base <= UINT64_MAX - bytes; }

}  // namespace

PeerRegion::PeerRegion(const RegionPacket& packet, MemoryOwner owner)
    : base_(packet.base),
      bytes_(packet.bytes),
      access_(static_cast<Access>(packet.access)),
      expected_(packet.parts),
      owner_(std::move(owner)) {}

absl::StatusOr<std::shared_ptr<PeerRegion>> PeerRegion::Begin(const RegionPacket& packet,
                                                              MemoryOwner owner) {
  const bool sense = EndsWithin(packet.base, packet.bytes) && packet.parts > 0 &&
                     packet.access <= static_cast<uint32_t>(Access::kReadWrite) &&
                     packet.parts <= packet.bytes / kMinPart + 2;
  if (!sense) return absl::InvalidArgumentError("the peer describes a region that cannot be");
  return std::shared_ptr<PeerRegion>(new PeerRegion(packet, std::move(owner)));
}

absl::Status PeerRegion::Check(const PartPacket& packet) const {
  const uint64_t next = parts_.empty() ? base_ : parts_.back().base + parts_.back().bytes;
  const uint64_t left = base_ + bytes_ - next;
  const bool last = parts_.size() + 1 == expected_;
  const bool sense =
      !whole() && packet.base == next && packet.bytes > 0 &&
      (last ? packet.bytes == left : packet.bytes < left) &&
      EndsWithin(packet.allocation_base, packet.allocation_bytes) &&
      packet.base >= packet.allocation_base &&
      packet.base - packet.allocation_base <= packet.allocation_bytes &&
      packet.bytes <= packet.allocation_bytes - (packet.base - packet.allocation_base) &&
      packet.kind <= static_cast<uint32_t>(cuda::AllocationKind::kManaged) &&
      packet.form <= HandleForm::kFabric;
  return sense ? absl::OkStatus()
               : absl::InvalidArgumentError("the peer describes an allocation that cannot be");
}

absl::Status PeerRegion::Add(const cuda::Driver* driver, OpenedTable& table,
                             const PartPacket& packet, net::Fd file) {
  absl::StatusOr<std::shared_ptr<OpenedMemory>> memory =
      table.Find(driver, owner_, packet, std::move(file));
  if (!memory.ok()) return memory.status();
  parts_.push_back({.base = packet.base,
                    .bytes = packet.bytes,
                    .offset = packet.base - packet.allocation_base,
                    .memory = *std::move(memory)});
  if (!owner_.same_process) return absl::OkStatus();
  own_parts_.push_back({.base = packet.base,
                        .bytes = packet.bytes,
                        .allocation_base = packet.allocation_base,
                        .allocation_bytes = packet.allocation_bytes,
                        .kind = static_cast<cuda::AllocationKind>(packet.kind),
                        .buffer_id = packet.buffer_id});
  if (!whole()) return absl::OkStatus();
  watched_.emplace(cuda::DeviceSpan{.base = base_,
                                    .bytes = bytes_,
                                    .device = owner_.ordinal,
                                    .parts = std::exchange(own_parts_, {})});
  return absl::OkStatus();
}

PeerRegion::View& PeerRegion::ViewOf(int device) {
  const auto it = std::ranges::find(views_, device, &View::device);
  if (it != views_.end()) return *it;
  views_.push_back({.device = device});
  return views_.back();
}

absl::Status PeerRegion::OpenMissing(int device) {
  View& view = ViewOf(device);
  while (view.why_not.ok() && view.at.size() < parts_.size()) {
    const Part& part = parts_[view.at.size()];
    absl::StatusOr<uint64_t> at = part.memory->AddressFor(device);
    // Not remembered: the next call tries again.
    if (absl::IsUnavailable(at.status())) return at.status();
    if (at.ok()) {
      view.at.push_back(*at + part.offset);
    } else {
      view.why_not = at.status();
    }
  }
  return view.why_not;
}

std::vector<int> PeerRegion::devices() const {
  std::vector<int> out;
  for (const View& view : views_) {
    if (view.why_not.ok() && !view.at.empty()) out.push_back(view.device);
  }
  return out;
}

void PeerRegion::Release() {
  released_ = true;
  views_.clear();
  parts_.clear();
  watched_.reset();
}

absl::StatusOr<const PeerRegion::View*> PeerRegion::OpenFor(int device) {
  if (released_ || gone_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the region of ", owner_.ToString(),
                     gone_ ? " was deregistered there" : " belongs to a connection that ended"));
  }
  if (absl::Status open = OpenMissing(device); !open.ok()) return open;
  return &ViewOf(device);
}

absl::StatusOr<std::optional<uint64_t>> PeerRegion::AddressFor(int device, uint64_t round) {
  absl::StatusOr<const View*> view = OpenFor(device);
  if (!view.ok()) return view.status();
  if (parts_.size() != 1) return std::nullopt;
  if (watched_) watched_->Touch(base_, bytes_, round);
  return (*view)->at.front();
}

cuda::Reach PeerRegion::ReachFrom(int device) const {
  if (owner_.same_process) {
    return owner_.ordinal == device ? cuda::Reach::kOwn : cuda::Reach::kPeer;
  }
  const cuda::Driver* const driver = cuda::Driver::IfInUse();
  const cuda::Device* const theirs =
      driver == nullptr ? nullptr : driver->FindUuid(owner_.device_uuid);
  return theirs != nullptr && theirs->ordinal == device ? cuda::Reach::kOwn : cuda::Reach::kPeer;
}

absl::Status PeerRegion::AddPieces(int device, OpKind kind, uint64_t local, uint64_t remote,
                                   uint64_t bytes, uint64_t round,
                                   std::vector<cuda::Piece>& pieces) {
  absl::StatusOr<const View*> view = OpenFor(device);
  if (!view.ok()) return view.status();
  if (watched_) watched_->Touch(remote, bytes, round);
  hint_ = cuda::PartAt(parts_, remote, hint_);
  for (size_t i = hint_; bytes > 0; ++i) {
    const Part& part = parts_[i];
    const uint64_t skipped = remote - part.base;
    const uint64_t taken = std::min(bytes, part.bytes - skipped);
    const uint64_t there = (*view)->at[i] + skipped;
    pieces.push_back(kind == OpKind::kWrite
                         ? cuda::Piece{.to = there, .from = local, .bytes = taken}
                         : cuda::Piece{.to = local, .from = there, .bytes = taken});
    local += taken;
    remote += taken;
    bytes -= taken;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cuda_ipc
