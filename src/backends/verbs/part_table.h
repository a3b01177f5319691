// The keys of a region that devices know in several parts, each with a key of its own: GPU memory
// in many adjacent allocations that no device registers as one.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_VERBS_PART_TABLE_H_
#define KVXFER_BACKENDS_VERBS_PART_TABLE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/backends/verbs/device.h"

namespace kvxfer::verbs {

// Finds the part that contains an address. Parts may have any sizes. If they are nearly equal, as
// allocators make them, a look-up costs the same for any number of parts.
class PartTable {
 public:
  // `bytes`: the size of each part, never 0. The first part begins at `base`.
  PartTable(uint64_t base, std::span<const uint64_t> bytes);

  size_t size() const { return ends_.size(); }
  uint64_t base() const { return base_; }
  // Where part `index` ends and the next one begins.
  uint64_t end(size_t index) const { return ends_[index]; }
  // `address` must be at least base(). Beyond the last part it is the last part.
  size_t Find(uint64_t address) const;

 private:
  const uint64_t base_;
  std::vector<uint64_t> ends_;
  // For each stretch of 2^shift_ bytes: the part that contains its first byte.
  std::vector<uint32_t> first_;
  unsigned shift_ = 0;
};

// The key of each part, for each device.
class PartKeys {
 public:
  explicit PartKeys(PartTable table) : table_(std::move(table)) {}

  const PartTable& table() const { return table_; }
  // Adds the keys of all parts with `device`, in order; once per device.
  void Add(size_t device, std::span<const uint32_t> keys);
  // The key of the part that contains `address`. `bytes`, counted from there, is cut to the end of
  // the part. 0: that device has no key.
  uint32_t At(size_t device, uint64_t address, uint64_t& bytes) const {
    const size_t part = table_.Find(address);
    const uint64_t left = table_.end(part) - address;
    if (left < bytes) bytes = left;
    const uint32_t from = from_[device];
    return from == kNone ? 0 : keys_[from + part];
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  PartTable table_;
  std::array<uint32_t, kMaxDevices> from_ = [] {
    std::array<uint32_t, kMaxDevices> none{};
    none.fill(kNone);
    return none;
  }();
  std::vector<uint32_t> keys_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PART_TABLE_H_
