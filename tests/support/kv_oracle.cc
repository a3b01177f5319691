#include "tests/support/kv_oracle.h"

namespace kvxfer::testing {

uint8_t* Cache::At(uint32_t layer, int kv, uint32_t block, uint32_t token, uint32_t head,
                   uint32_t e) {
  const size_t which = kv == 1 && tensors.size() == 2 ? 1 : 0;
  const KvTensor& tensor = tensors[which];
  const uint32_t element_bytes = model.element == KvElement::kFp32   ? 4
                                 : model.element == KvElement::kBf16 ? 2
                                                                     : 1;
  uint64_t index = 0;
  for (size_t i = 0; i < tensor.axes.size(); ++i) {
    uint64_t at = 0;
    switch (tensor.axes[i]) {
      case 'L':
        at = layer - shard.first_layer;
        break;
      case '2':
        at = static_cast<uint64_t>(kv);
        break;
      case 'B':
        at = block;
        break;
      case 'N':
        at = token;
        break;
      case 'H':
        at = head - first_head;
        break;
      case 'D':
        at = e;
        break;
      case 'C':
        at = e + (kv == 1 ? model.k_size : 0);
        break;
    }
    index += at * tensor.strides[i];
  }
  auto& of_layer = memory[layers_within() ? 0 : layer - shard.first_layer];
  return &of_layer[which][index * element_bytes];
}

std::pair<uint32_t, uint32_t> HeadRange(uint32_t heads, uint32_t tp, uint32_t rank) {
  std::vector<uint32_t> mine;
  for (uint32_t head = 0; head < heads; ++head) {
    for (uint32_t r = 0; r < tp; ++r) {
      const bool has = tp <= heads ? head / (heads / tp) == r : r / (tp / heads) == head;
      if (has && r == rank) mine.push_back(head);
    }
  }
  return {mine.front(), static_cast<uint32_t>(mine.size())};
}

Cache MakeCache(const KvModel& model, const KvShard& shard, uint32_t first_head, uint32_t heads,
                Form form, const std::string& order, uint32_t blocks, uint32_t block_tokens,
                std::mt19937_64* padding, uint8_t fill) {
  Cache cache{.model = model, .shard = shard, .first_head = first_head, .heads = heads};
  const uint32_t element_bytes = BytesOf(model.element);
  std::vector<uint64_t> sizes;
  const bool has_l = order.find('L') != std::string::npos;
  for (int t = 0; t < (form == Form::kApart ? 2 : 1); ++t) {
    KvTensor tensor{.axes = order};
    tensor.axes += form == Form::kPacked || form == Form::kFused ? 'C' : 'D';
    uint64_t extent = 1;
    tensor.shape.resize(tensor.axes.size());
    tensor.strides.resize(tensor.axes.size());
    for (size_t i = tensor.axes.size(); i-- > 0;) {
      uint64_t length = 0;
      switch (tensor.axes[i]) {
        case 'L':
          length = shard.layers;
          break;
        case '2':
          length = 2;
          break;
        case 'B':
          length = blocks;
          break;
        case 'N':
          length = block_tokens;
          break;
        case 'H':
          length = heads;
          break;
        case 'D':
          length = t == 1 ? model.v_size : model.k_size;
          break;
        case 'C':
          length = model.k_size + model.v_size;
          break;
      }
      const bool innermost = i + 1 == tensor.axes.size();
      const uint64_t pad = padding != nullptr && !innermost ? (*padding)() % 3 : 0;
      tensor.shape[i] = length;
      tensor.strides[i] = extent + (innermost ? 0 : pad);
      extent += (length - 1) * tensor.strides[i] + (innermost ? 0 : pad);
    }
    sizes.push_back(extent * element_bytes);
    cache.tensors.push_back(std::move(tensor));
  }
  cache.memory.resize(has_l ? 1 : shard.layers);
  for (auto& of_layer : cache.memory) {
    for (const uint64_t size : sizes) of_layer.emplace_back(size, fill);
  }
  return cache;
}

uint8_t ValueOf(uint32_t layer, int kv, uint32_t token, uint32_t head, uint32_t e, uint32_t byte) {
  uint64_t x = layer;
  for (const uint64_t next :
       {static_cast<uint64_t>(kv), uint64_t{token}, uint64_t{head}, uint64_t{e}, uint64_t{byte}}) {
    x = (x * 0x9e3779b97f4a7c15u) ^ (next + 0x632be59bd9b4e019u);
    x ^= x >> 29;
  }
  return static_cast<uint8_t>(x >> 7);
}

}  // namespace kvxfer::testing
