// Checks where the tensors of a KV cache lie, relative to each other and in the address space.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_TENSORS_H_
#define KVXFER_CORE_KV_KV_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/kv_layout.h"

namespace kvxfer {

// InvalidArgument: the number of tensors differs from the layout's. `name` appears in the message.
absl::Status CheckKvTensorCount(std::string_view name, const KvLayout& layout, size_t tensors);

// For the side that registers a cache. InvalidArgument: as for CheckKvTensorCount; a tensor that
// ends beyond the address space; or two tensors that overlap. A tensor may lie in the gaps between
// another one's blocks, as views of one buffer do that holds all layers of a block together. It may
// not lie within another's blocks: K and V that do so are one tensor, with axis 2 or C. At most a
// few thousand tensors may share gaps (kMaxCompared in the .cc file).
absl::Status CheckKvTensors(std::string_view name, const KvLayout& layout,
                            std::span<const uint64_t> tensors);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_TENSORS_H_
