// Outgoing: building and packing a frame; its UCX datatype; OutgoingPool.

#include "src/backends/ucx/outgoing.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvxfer::ucx {

void Outgoing::Begin() {
  own_.resize(kFrameHeadBytes);
  lent_.clear();
  bytes_ = kFrameHeadBytes;
  part_ = 0;
  part_offset_ = 0;
}

void Outgoing::Append(const WireRun& piece) {
  own_.resize(own_.size() + kWireRunBytes);
  Encode(piece, std::span(own_).last<kWireRunBytes>());
  bytes_ += kWireRunBytes;
}

void Outgoing::Append(std::span<const std::byte> bytes) {
  own_.insert(own_.end(), bytes.begin(), bytes.end());
  bytes_ += bytes.size();
}

void Outgoing::Lend(const void* memory, size_t bytes) {
  if (bytes == 0) return;
  lent_.push_back({static_cast<const std::byte*>(memory), bytes});
  bytes_ += bytes;
}

void Outgoing::SetHead(FrameHead head) {
  head.bytes = static_cast<uint32_t>(body_bytes());
  Encode(head, std::span(own_).first<kFrameHeadBytes>());
}

void Outgoing::Own() {
  own_.reserve(bytes_);
  for (const Lent& part : lent_) own_.insert(own_.end(), part.memory, part.memory + part.bytes);
  lent_.clear();
}

// UCX packs a frame in consecutive parts, so part_ usually continues where the last call stopped.
// After a jump back the search starts again at the first lent part.
size_t Outgoing::Pack(size_t offset, std::span<std::byte> space) {
  size_t at = 0;
  if (offset < own_.size()) {
    at = std::min(space.size(), own_.size() - offset);
    std::memcpy(space.data(), &own_[offset], at);
  }
  if (offset <= own_.size() || offset + at < part_offset_) {
    part_ = 0;
    part_offset_ = own_.size();
  }
  while (at < space.size() && part_ < lent_.size()) {
    const Lent& part = lent_[part_];
    const size_t skip = offset + at - part_offset_;
    if (skip < part.bytes) {
      const size_t bytes = std::min(space.size() - at, part.bytes - skip);
      std::memcpy(&space[at], part.memory + skip, bytes);
      at += bytes;
      if (skip + bytes < part.bytes) break;
    }
    part_offset_ += part.bytes;
    ++part_;
  }
  return at;
}

const ucp_generic_dt_ops_t Outgoing::kDatatypeOps = {
    // The frame itself is the packing state. Frames are never unpacked: the receiver gets whole
    // messages.
    .start_pack = [](void*, const void* frame, size_t) { return const_cast<void*>(frame); },
    .start_unpack = [](void*, void*, size_t) -> void* { return nullptr; },
    .packed_size = [](void* frame) { return static_cast<Outgoing*>(frame)->bytes(); },
    .pack =
        [](void* frame, size_t offset, void* to, size_t space) {
          return static_cast<Outgoing*>(frame)->Pack(offset, {static_cast<std::byte*>(to), space});
        },
    .unpack = [](void*, size_t, const void*, size_t) { return UCS_ERR_UNSUPPORTED; },
    .finish = [](void*) {},
};

std::unique_ptr<Outgoing> OutgoingPool::Take() {
  if (free_.empty()) return std::make_unique<Outgoing>();
  std::unique_ptr<Outgoing> out = std::move(free_.back());
  free_.pop_back();
  return out;
}

void OutgoingPool::Give(std::unique_ptr<Outgoing> frame) {
  if (free_.size() < kMaxFree) free_.push_back(std::move(frame));
}

}  // namespace kvxfer::ucx
