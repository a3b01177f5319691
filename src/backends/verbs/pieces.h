// The keys of a region that devices know in several pieces, each by a key of its own: GPU memory of
// many allocations side by side, which no device has taken as one.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_VERBS_PIECES_H_
#define KVXFER_BACKENDS_VERBS_PIECES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/backends/verbs/device.h"

namespace kvxfer::verbs {

// Which piece an address is in. Pieces may be of any sizes; where they are nearly equal, which is
// how allocators make them, looking one up costs the same however many there are.
class PieceTable {
 public:
  // `bytes` of each piece, none of them 0; the first begins at `base`.
  PieceTable(uint64_t base, std::span<const uint64_t> bytes);

  size_t size() const { return ends_.size(); }
  uint64_t base() const { return base_; }
  // Where piece `index` ends, and the next begins.
  uint64_t end(size_t index) const { return ends_[index]; }
  // Of an address from base() on; behind the last piece it is that.
  size_t Find(uint64_t address) const;

 private:
  const uint64_t base_;
  std::vector<uint64_t> ends_;
  // Of each stretch of 2^shift_ bytes: the piece that its first byte is in.
  std::vector<uint32_t> first_;
  unsigned shift_ = 0;
};

// The key of each piece, by device.
class PieceKeys {
 public:
  explicit PieceKeys(PieceTable table) : table_(std::move(table)) {}

  const PieceTable& table() const { return table_; }
  // The key of each piece with `device`, in their order; once for a device.
  void Add(size_t device, std::span<const uint32_t> keys);
  // Of the piece that `address` is in. `bytes`, from there on, is cut where the piece ends. 0 where
  // that device has none.
  uint32_t At(size_t device, uint64_t address, uint64_t& bytes) const {
    const size_t piece = table_.Find(address);
    const uint64_t left = table_.end(piece) - address;
    if (left < bytes) bytes = left;
    const uint32_t from = from_[device];
    return from == kNone ? 0 : keys_[from + piece];
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  PieceTable table_;
  std::array<uint32_t, kMaxDevices> from_ = [] {
    std::array<uint32_t, kMaxDevices> none{};
    none.fill(kNone);
    return none;
  }();
  std::vector<uint32_t> keys_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PIECES_H_
