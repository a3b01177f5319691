// The blocks of a transfer between two KV caches, as a BlockList: the same copies for every two
// blocks whose tokens meet in the same way, and for each such way the ids of those blocks.
//
// Specification, held by property tests against whole tensors: the runs of the list's slices, in
// whichever order, write every byte of the wanted layers, heads and tokens of the target once, with
// the byte of the same layer, head, token and element of the source, and no other byte.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_BLOCK_LIST_H_
#define KVXFER_CORE_KV_KV_BLOCK_LIST_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/core/plan/block_list.h"

namespace kvxfer {

// One side of such a transfer.
struct KvSide {
  const KvLayout* layout = nullptr;
  // Where its tensors begin: layout->tensors() of them, or as many for each layer of the shard,
  // layer by layer.
  std::span<const uint64_t> tensors{};
  std::span<const uint32_t> ids{};  // blocks of the request, in the order of its tokens
  uint64_t first_token = 0;         // counted through from the first of these blocks on
};

// What of the model moves.
struct KvWanted {
  uint32_t first_layer = 0;  // of the model
  uint32_t layers = 0;
  KvHeads heads{};
  uint64_t tokens = 0;
};

// The tensors of both sides have passed CheckKvTensors (kv_tensors.h). Layers are listed one after
// the other, in ascending order, but where both sides have theirs in one tensor. The list is at
// most as large as the ids of both sides, and layers times the ways in which blocks meet.
// InvalidArgument: layouts of unlike models, heads or layers that a side has not, too few ids for
// the tokens, an id out of range, the same block of the target twice, blocks that meet in more than
// 4,096 ways, a tensor that is in no region; PermissionDenied as Agent::Write.
absl::StatusOr<BlockList> ListKvBlocks(const KvSide& local, const KvSide& remote,
                                       const KvWanted& wanted, Direction direction,
                                       const RegionTable& local_table,
                                       const RegionTable& remote_table, IdPool& pool);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_BLOCK_LIST_H_
