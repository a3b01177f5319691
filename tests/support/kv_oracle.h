// A KV cache as whole tensors, by plain index arithmetic: what transfers between layouts are held
// against. Nothing of it comes from the code under test but the types that describe a tensor.
#ifndef KVXFER_TESTS_SUPPORT_KV_ORACLE_H_
#define KVXFER_TESTS_SUPPORT_KV_ORACLE_H_

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/kv_layout.h"

namespace kvxfer::testing {

// How K and V share tensors.
enum class Form : uint8_t { kPacked, kTwo, kApart, kFused };

// One worker's cache: for each of its layers (or once, where axis L is there) one or two tensors.
struct Cache {
  KvModel model;
  KvShard shard;
  uint32_t first_head = 0;
  uint32_t heads = 0;
  std::vector<KvTensor> tensors{};                          // of a layer
  std::vector<std::vector<std::vector<uint8_t>>> memory{};  // [layer or 0][tensor]

  bool layers_within() const { return tensors[0].axes.find('L') != std::string::npos; }
  // The bytes of one element; `head` and `layer` of the model, `kv` 0 for K.
  uint8_t* At(uint32_t layer, int kv, uint32_t block, uint32_t token, uint32_t head, uint32_t e);
};

// The heads of a rank: first and count.
std::pair<uint32_t, uint32_t> HeadRange(uint32_t heads, uint32_t tp, uint32_t rank);

// `order`: letters of the axes but for the innermost one; each is padded where `padding` says so.
Cache MakeCache(const KvModel& model, const KvShard& shard, uint32_t first_head, uint32_t heads,
                Form form, const std::string& order, uint32_t blocks, uint32_t block_tokens,
                std::mt19937_64* padding, uint8_t fill);

// What the model has there; never the fill of a cache on average.
uint8_t ValueOf(uint32_t layer, int kv, uint32_t token, uint32_t head, uint32_t e, uint32_t byte);

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_KV_ORACLE_H_
