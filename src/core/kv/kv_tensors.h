// Where the tensors of a KV cache may lie, beside each other and in memory.
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

// InvalidArgument when there are not as many tensors as the layout has. `name` goes into messages.
absl::Status CheckKvTensorCount(std::string_view name, const KvLayout& layout, size_t tensors);

// Of who registers a cache: InvalidArgument as CheckKvTensorCount, when a tensor ends beyond the
// address space, or when two overlap. Tensors may lie within each other's gaps from block to block,
// as views of one buffer do that has all layers of a block together, but not within each other's
// blocks: K and V that do are one tensor, with axis 2 or C. At most some thousands of them may do
// so.
absl::Status CheckKvTensors(std::string_view name, const KvLayout& layout,
                            std::span<const uint64_t> tensors);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_TENSORS_H_
