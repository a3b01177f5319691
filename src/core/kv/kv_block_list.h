// Builds the BlockList of a transfer between two KV caches. For each way in which the tokens of a
// source block and a target block overlap, the list has the strided copies once and the ids of all
// pairs of blocks that overlap in that way.
//
// Specification, checked by property tests against whole tensors: the runs of the list's slices, in
// any order, write every byte of the wanted layers, heads and tokens of the target exactly once,
// with the byte of the same layer, head, token and element of the source. They write no other byte.
//
// Thread-safety: pure; a KvLayerLists may be used by several threads at once.

#ifndef KVXFER_CORE_KV_KV_BLOCK_LIST_H_
#define KVXFER_CORE_KV_KV_BLOCK_LIST_H_

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/core/kv/kv_range.h"
#include "src/core/plan/block_list.h"

namespace kvxfer {

// One side of a transfer between KV caches.
struct KvSide {
  const KvLayout* layout = nullptr;
  // The addresses of its tensors: layout->tensors() of them, or that many for each layer of the
  // shard, layer by layer.
  std::span<const uint64_t> tensors{};
  std::span<const uint32_t> ids{};  // blocks of the request, in the order of its tokens
  uint64_t first_token = 0;         // counted from the first token of the first of these blocks
};

// Lists `tokens` tokens of `range`. Requires that the tensors of both sides have passed
// CheckKvTensors (kv_tensors.h). Layers are listed one after the other in ascending order, unless
// each side has them in one tensor. The size of the list is bounded by the ids of both sides, plus
// layers times the ways in which blocks overlap. InvalidArgument: layouts of different models;
// heads or layers that a side does not have; too few ids for the tokens; an id out of range; the
// same target block twice; blocks that overlap in more than 4,096 ways; a tensor in no region.
// PermissionDenied: as for Agent::Write.
absl::StatusOr<BlockList> ListKvBlocks(const KvSide& local, const KvSide& remote,
                                       const KvRange& range, uint64_t tokens, Direction direction,
                                       const RegionTable& local_table,
                                       const RegionTable& remote_table, IdPool& pool);

class KvListBuilder;

// Makes the lists of single layers, or of some, out of what is checked and sorted once. A list that
// it makes equals that of ListKvBlocks for the same layers. The lists share one copy of the ids,
// and may outlive what made them.
class KvLayerLists {
 public:
  // Arguments and errors as for ListKvBlocks. What the layouts and the tensors of both sides point
  // to outlives the object; the ids are read during the call only.
  static absl::StatusOr<KvLayerLists> Make(const KvSide& local, const KvSide& remote,
                                           const KvRange& range, uint64_t tokens,
                                           Direction direction, const RegionTable& local_table,
                                           const RegionTable& remote_table);
  ~KvLayerLists();
  KvLayerLists(KvLayerLists&&) noexcept;
  KvLayerLists& operator=(KvLayerLists&&) noexcept;

  // The list of `layers` layers from `first_layer` of the model on, which lie within the range.
  // Costs what these layers have in pairs, whatever the number of ids. InvalidArgument: more than
  // 2^64 - 1 bytes.
  absl::StatusOr<BlockList> List(uint32_t first_layer, uint32_t layers) const;

 private:
  explicit KvLayerLists(std::unique_ptr<const KvListBuilder> builder);

  std::unique_ptr<const KvListBuilder> builder_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_BLOCK_LIST_H_
