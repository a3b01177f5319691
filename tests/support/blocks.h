// Blocks scattered as a cache's allocator leaves them, the same on both sides of a test from the
// same shape and seed, so that the other process can check what landed.
#ifndef KVXFER_TESTS_SUPPORT_BLOCKS_H_
#define KVXFER_TESTS_SUPPORT_BLOCKS_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvxfer/agent.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {

struct Shape {
  uint64_t block_bytes = 4096;
  uint32_t ids = 1;     // blocks of one layer
  uint32_t layers = 1;  // pairs of paged regions
  uint64_t gap = 0;     // bytes between blocks
  bool paged = true;    // else as descriptors
  uint64_t seed = 1;    // of the scatter

  uint64_t stride() const { return block_bytes + gap; }
  uint32_t places() const { return ids + ids / 8 + 1; }
  uint64_t blocks() const { return uint64_t{ids} * layers; }
  // What each side needs, at least 1.
  uint64_t memory_bytes() const;
  std::string ToString() const;
  static Shape FromString(std::string_view text);
};

enum class Side : uint8_t { kLocal, kRemote };

class BlockSet {
 public:
  // Local and remote blocks lie at and above these addresses.
  BlockSet(const Shape& shape, uint64_t local_base, uint64_t remote_base);

  absl::StatusOr<Transfer> Write(Agent& agent, std::string_view peer,
                                 const TransferOptions& options = {}) const;
  absl::StatusOr<Transfer> Read(Agent& agent, std::string_view peer,
                                const TransferOptions& options = {}) const;

 private:
  PagedBlocks paged() const;
  DescriptorBlocks descriptors() const;

  Shape shape_;
  std::vector<PagedRegion> local_regions_;
  std::vector<PagedRegion> remote_regions_;
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
  std::vector<Descriptor> local_;
  std::vector<Descriptor> remote_;
};

// `memory` is the destination, on `side`, of blocks whose source held Pattern(pattern_seed) from
// its base: each block holds its source's bytes, every byte between blocks is still zero.
::testing::AssertionResult AllArrived(const Shape& shape, Side side, uint64_t pattern_seed,
                                      std::span<const std::byte> memory);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_BLOCKS_H_
