// A request moved from the KV caches of one instance into those of another, as an agent would:
// lists of blocks walked slice by slice, held against whole tensors (kv_oracle.h).
#ifndef KVXFER_TESTS_UNIT_CORE_KV_KV_MOVER_H_
#define KVXFER_TESTS_UNIT_CORE_KV_KV_MOVER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/core/kv/kv_block_list.h"
#include "tests/support/kv_oracle.h"

namespace kvxfer::testing {

// How one instance holds its cache.
struct KvInstance {
  uint32_t tp = 1;
  uint32_t pp = 1;  // stages of equal length
  Form form = Form::kPacked;
  std::string order = "BHN";
  uint32_t block_tokens = 16;
};

// One request: where its tokens begin on either side, and how many there are.
struct KvMove {
  KvModel model;
  KvInstance src;
  KvInstance dst;
  uint64_t src_first = 0;
  uint64_t dst_first = 0;
  uint32_t tokens = 0;
};

std::string Text(const KvMove& move);

// Every rank of the target takes its part, in lists and slices of random size; false, and failures
// of the test, after the first that is not as it should be. `padded`: the axes of tensors are.
bool MoveAll(const KvMove& move, bool padded, uint64_t seed);

// A cache as one side of a transfer; each tensor is a region of its own. The cache and the ids
// outlive it.
class CacheSide {
 public:
  CacheSide(Cache& cache, const std::vector<uint32_t>& ids, uint64_t first_token);
  CacheSide(const CacheSide&) = delete;
  CacheSide& operator=(const CacheSide&) = delete;

  const KvSide& side() const { return side_; }
  RegionTable Table(Access access) const;

 private:
  absl::StatusOr<KvLayout> layout_;
  std::vector<uint64_t> tensors_;
  std::vector<uint64_t> sizes_;
  KvSide side_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_CORE_KV_KV_MOVER_H_
