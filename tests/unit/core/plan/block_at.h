// Single blocks of a block list whose blocks are of one run each.
#ifndef KVXFER_TESTS_UNIT_CORE_PLAN_BLOCK_AT_H_
#define KVXFER_TESTS_UNIT_CORE_PLAN_BLOCK_AT_H_

#include <cstdint>

#include "src/core/plan/block_list.h"

namespace kvxfer {

// Block `index`, counted through pair by pair.
inline Block At(const BlockList& list, uint64_t index) {
  if (list.pairs().empty()) return list.descriptors()[index];
  size_t p = 0;
  while (index >= list.pairs()[p].id_count) index -= list.pairs()[p++].id_count;
  const BlockPair& pair = list.pairs()[p];
  index += pair.first_id;
  return {.local = pair.local.base + list.local_ids()[index] * pair.local.stride,
          .remote = pair.remote.base + list.remote_ids()[index] * pair.remote.stride,
          .bytes = pair.local.block_bytes,
          .local_region = pair.local_region,
          .remote_region = pair.remote_region};
}

}  // namespace kvxfer

#endif  // KVXFER_TESTS_UNIT_CORE_PLAN_BLOCK_AT_H_
