#include "examples/disagg_cpu/paged_cache.h"

#include <utility>

namespace disagg {
namespace {

// 0: there is no such axis.
uint64_t StrideOf(char axis, const kvxfer::KvTensor& tensor) {
  const size_t at = tensor.axes.find(axis);
  return at == std::string::npos ? 0 : tensor.strides[at];
}

uint64_t LengthOf(char axis, const CacheSpec& spec, const kvxfer::KvHeads& heads) {
  switch (axis) {
    case '2':
      return 2;
    case 'B':
      return spec.blocks;
    case 'N':
      return spec.block_tokens;
    case 'H':
      return heads.count;
    case 'C':
      return 2 * kHeadSize;
    default:
      return kHeadSize;
  }
}

}  // namespace

absl::StatusOr<PagedCache> PagedCache::Create(const CacheSpec& spec, uint32_t tp_rank,
                                              uint32_t tp_size, uint64_t fingerprint) {
  PagedCache cache;
  cache.spec_ = spec;
  cache.model_ = {.layers = kLayers,
                  .heads = kKvHeads,
                  .k_size = kHeadSize,
                  .v_size = kHeadSize,
                  .element = kvxfer::KvElement::kFp32,
                  .fingerprint = fingerprint};
  cache.shard_ = {.tp_rank = tp_rank, .tp_size = tp_size, .first_layer = 0, .layers = kLayers};
  auto heads = kvxfer::HeadsOf(cache.model_, tp_rank, tp_size);
  if (!heads.ok()) return heads.status();
  cache.heads_ = *heads;
  // Without gaps: each axis strides over all that is inside of it.
  kvxfer::KvTensor& tensor = cache.tensor_;
  tensor.axes = spec.axes;
  uint64_t stride = 1;
  for (size_t i = spec.axes.size(); i-- > 0;) {
    const uint64_t length = LengthOf(spec.axes[i], spec, *heads);
    tensor.shape.insert(tensor.shape.begin(), length);
    tensor.strides.insert(tensor.strides.begin(), stride);
    stride *= length;
  }
  const uint64_t apart = StrideOf('2', tensor);
  cache.strides_ = {.layer = stride,
                    .block = StrideOf('B', tensor),
                    .token = StrideOf('N', tensor),
                    .head = StrideOf('H', tensor),
                    // Without an axis of two, V lies behind K in each row.
                    .value = apart != 0 ? apart : kHeadSize};
  auto memory = kvxfer::HostBuffer::Allocate(kLayers * stride * sizeof(float));
  if (!memory.ok()) return memory.status();
  cache.memory_ = *std::move(memory);
  return cache;
}

absl::Status PagedCache::Register(kvxfer::Agent& agent) const {
  auto region = agent.RegisterMemory(memory_.span(), kvxfer::Access::kReadWrite);
  if (!region.ok()) return region.status();
  auto layout = kvxfer::KvLayout::FromTensors(model_, shard_, {&tensor_, 1});
  if (!layout.ok()) return layout.status();
  std::vector<uint64_t> tensors;
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    tensors.push_back(reinterpret_cast<uint64_t>(memory_.data()) +
                      layer * strides_.layer * sizeof(float));
  }
  return agent.RegisterKvCache(kvxfer::CacheName(kCacheName), *layout, tensors);
}

float* PagedCache::KeyAt(uint32_t layer, uint32_t head, uint32_t block, uint32_t token) const {
  return reinterpret_cast<float*>(memory_.data()) + layer * strides_.layer +
         block * strides_.block + token * strides_.token + (head - heads_.first) * strides_.head;
}

float* PagedCache::ValueAt(uint32_t layer, uint32_t head, uint32_t block, uint32_t token) const {
  return KeyAt(layer, head, block, token) + strides_.value;
}

void PagedCache::Spoil(uint32_t block) const {
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (uint32_t head = heads_.first; head < heads_.first + heads_.count; ++head) {
      for (uint32_t token = 0; token < spec_.block_tokens; ++token) {
        float* const key = KeyAt(layer, head, block, token);
        float* const value = ValueAt(layer, head, block, token);
        for (uint32_t i = 0; i < kHeadSize; ++i) {
          key[i] = -key[i];
          value[i] = -value[i];
        }
      }
    }
  }
}

}  // namespace disagg
