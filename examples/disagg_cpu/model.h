// A small transformer (RMSNorm, rotary positions, grouped-query attention, SwiGLU) in float32. It
// knows nothing of processes and transfers: what a rank of a tensor-parallel instance brings is in
// `Shard`. Weights come from a seed, so that every process makes the same ones.
//
// Each head is computed by itself and all heads are put together in the order of their index, so
// that an instance of any size comes to exactly the floats that one process alone comes to.
//
// Thread-safety: Forward may be called from several threads, with a store of its own each.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_MODEL_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace disagg {

inline constexpr uint32_t kVocabulary = 256;
inline constexpr uint32_t kHidden = 128;
inline constexpr uint32_t kLayers = 4;
inline constexpr uint32_t kQueryHeads = 8;
inline constexpr uint32_t kKvHeads = 4;
inline constexpr uint32_t kHeadSize = 16;
inline constexpr uint32_t kMlp = 256;
inline constexpr uint32_t kQueriesPerKv = kQueryHeads / kKvHeads;

// Where K and V of one request lie: kHeadSize floats for each layer, KV head (both of the model)
// and position.
class KvStore {
 public:
  virtual ~KvStore() = default;
  virtual float* Key(uint32_t layer, uint32_t head, uint32_t position) = 0;
  virtual float* Value(uint32_t layer, uint32_t head, uint32_t position) = 0;
};

// The part of the model's attention that one worker computes.
struct Shard {
  uint32_t first_kv_head = 0;
  uint32_t kv_heads = kKvHeads;
  // Gets the attention of this worker's heads, [query head of the model][token][kHeadSize], and
  // fills in that of the others'. Empty: there are no others.
  std::function<absl::Status(std::span<float>)> gather{};
  // The layer's K and V of the new tokens are in the store. Its attention is computed after it.
  std::function<absl::Status(uint32_t layer)> stored{};
};

class Model {
 public:
  explicit Model(uint64_t seed);

  // Runs `tokens`, which follow the `position` tokens that the store holds, and stores their K and
  // V. Says the token that comes next (greedily). An error is the shard's.
  absl::StatusOr<uint32_t> Forward(std::span<const uint32_t> tokens, uint32_t position,
                                   KvStore& store, const Shard& shard) const;

 private:
  using Matrix = std::vector<float>;  // [in][out]
  struct Layer {
    std::vector<Matrix> query{};  // of each head
    std::vector<Matrix> key{};
    std::vector<Matrix> value{};
    Matrix output{};
    Matrix gate{};
    Matrix up{};
    Matrix down{};
  };

  void StoreKv(uint32_t layer, std::span<const float> normed, uint32_t position, KvStore& store,
               const Shard& shard) const;
  void Attend(uint32_t layer, std::span<const float> normed, uint32_t position, KvStore& store,
              const Shard& shard, std::span<float> attention) const;
  void AddOutput(const Layer& layer, std::span<const float> attention, std::span<float> x) const;
  void AddMlp(const Layer& layer, std::span<float> x) const;

  Matrix embedding_;
  std::vector<Layer> layers_;
  Matrix logits_;
};

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_MODEL_H_
