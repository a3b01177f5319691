#include "examples/disagg_cpu/model.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace disagg {
namespace {

using Head = std::array<float, kHeadSize>;
using Row = std::array<float, kHidden>;

// SplitMix64: the same numbers on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // Uniform in [-1, 1).
  float Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<float>((z ^ (z >> 31)) >> 40) / static_cast<float>(1 << 23) - 1;
  }

 private:
  uint64_t state_;
};

std::vector<float> RandomMatrix(Random& random, uint32_t in, uint32_t out, float gain) {
  std::vector<float> matrix(size_t{in} * out);
  const float scale = gain * std::sqrt(3.0f / static_cast<float>(in));
  for (float& weight : matrix) weight = scale * random.Next();
  return matrix;
}

// out += in * matrix. Sums in the order of `in`, whoever calls it.
void AddProduct(std::span<const float> in, const std::vector<float>& matrix, std::span<float> out) {
  const float* row = matrix.data();
  float* const to = out.data();
  const size_t columns = out.size();
  for (const float value : in) {
    for (size_t j = 0; j < columns; ++j) to[j] += value * row[j];
    row += columns;
  }
}

Row Normed(std::span<const float> x) {
  float squares = 0;
  for (const float value : x) squares += value * value;
  const float scale = 1 / std::sqrt(squares / kHidden + 1e-5f);
  Row row;
  for (size_t i = 0; i < kHidden; ++i) row[i] = x[i] * scale;
  return row;
}

// Rotary position: turns each pair of elements by an angle that grows with the position.
void Rotate(uint32_t position, Head& head) {
  constexpr uint32_t kHalf = kHeadSize / 2;
  for (uint32_t i = 0; i < kHalf; ++i) {
    const float angle = static_cast<float>(position) *
                        std::pow(10000.0f, -static_cast<float>(i) / static_cast<float>(kHalf));
    const float cos = std::cos(angle);
    const float sin = std::sin(angle);
    const float a = head[i];
    const float b = head[i + kHalf];
    head[i] = a * cos - b * sin;
    head[i + kHalf] = a * sin + b * cos;
  }
}

std::span<const float> RowOf(std::span<const float> rows, size_t token) {
  return rows.subspan(token * kHidden, kHidden);
}

// Causal attention of one query at `position` over all positions up to it.
Head AttendOne(const Head& query, uint32_t layer, uint32_t kv_head, uint32_t position,
               KvStore& store) {
  std::vector<float> scores(position + 1);
  float highest = -INFINITY;
  for (uint32_t p = 0; p <= position; ++p) {
    const float* const key = store.Key(layer, kv_head, p);
    float dot = 0;
    for (uint32_t i = 0; i < kHeadSize; ++i) dot += query[i] * key[i];
    scores[p] = dot / std::sqrt(static_cast<float>(kHeadSize));
    highest = std::max(highest, scores[p]);
  }
  float sum = 0;
  for (float& score : scores) sum += (score = std::exp(score - highest));
  Head out{};
  for (uint32_t p = 0; p <= position; ++p) {
    const float* const value = store.Value(layer, kv_head, p);
    const float weight = scores[p] / sum;
    for (uint32_t i = 0; i < kHeadSize; ++i) out[i] += weight * value[i];
  }
  return out;
}

}  // namespace

Model::Model(uint64_t seed) {
  Random random(seed);
  // Attention gets a large gain, so that what a random model says depends on all of its cache.
  constexpr float kAttentionGain = 2;
  embedding_ = RandomMatrix(random, kVocabulary, kHidden, std::sqrt(float{kVocabulary}));
  for (uint32_t l = 0; l < kLayers; ++l) {
    Layer layer;
    for (uint32_t h = 0; h < kQueryHeads; ++h) {
      layer.query.push_back(RandomMatrix(random, kHidden, kHeadSize, kAttentionGain));
    }
    for (uint32_t h = 0; h < kKvHeads; ++h) {
      layer.key.push_back(RandomMatrix(random, kHidden, kHeadSize, 1));
      layer.value.push_back(RandomMatrix(random, kHidden, kHeadSize, kAttentionGain));
    }
    layer.output = RandomMatrix(random, kQueryHeads * kHeadSize, kHidden, kAttentionGain);
    layer.gate = RandomMatrix(random, kHidden, kMlp, 1);
    layer.up = RandomMatrix(random, kHidden, kMlp, 1);
    layer.down = RandomMatrix(random, kMlp, kHidden, 1);
    layers_.push_back(std::move(layer));
  }
  logits_ = RandomMatrix(random, kHidden, kVocabulary, 1);
}

absl::StatusOr<uint32_t> Model::Forward(std::span<const uint32_t> tokens, uint32_t position,
                                        KvStore& store, const Shard& shard) const {
  const size_t count = tokens.size();
  if (count == 0) return absl::InvalidArgumentError("no tokens to run");
  std::vector<float> x(count * kHidden);
  for (size_t t = 0; t < count; ++t) {
    std::copy_n(embedding_.data() + size_t{tokens[t] % kVocabulary} * kHidden, kHidden,
                x.data() + t * kHidden);
  }
  std::vector<float> normed(x.size());
  std::vector<float> attention(count * kQueryHeads * kHeadSize);
  for (uint32_t l = 0; l < kLayers; ++l) {
    for (size_t t = 0; t < count; ++t) {
      std::ranges::copy(Normed(RowOf(x, t)), normed.data() + t * kHidden);
    }
    StoreKv(l, normed, position, store, shard);
    if (shard.stored) {
      if (absl::Status status = shard.stored(l); !status.ok()) return status;
    }
    Attend(l, normed, position, store, shard, attention);
    if (shard.gather) {
      if (absl::Status status = shard.gather(attention); !status.ok()) return status;
    }
    AddOutput(layers_[l], attention, x);
    AddMlp(layers_[l], x);
  }
  std::vector<float> logits(kVocabulary);
  AddProduct(Normed(RowOf(x, count - 1)), logits_, logits);
  return static_cast<uint32_t>(std::ranges::max_element(logits) - logits.begin());
}

void Model::StoreKv(uint32_t layer, std::span<const float> normed, uint32_t position,
                    KvStore& store, const Shard& shard) const {
  for (uint32_t t = 0; t < normed.size() / kHidden; ++t) {
    for (uint32_t h = shard.first_kv_head; h < shard.first_kv_head + shard.kv_heads; ++h) {
      Head key{};
      Head value{};
      AddProduct(RowOf(normed, t), layers_[layer].key[h], key);
      AddProduct(RowOf(normed, t), layers_[layer].value[h], value);
      Rotate(position + t, key);
      std::ranges::copy(key, store.Key(layer, h, position + t));
      std::ranges::copy(value, store.Value(layer, h, position + t));
    }
  }
}

void Model::Attend(uint32_t layer, std::span<const float> normed, uint32_t position, KvStore& store,
                   const Shard& shard, std::span<float> attention) const {
  const uint32_t count = static_cast<uint32_t>(normed.size() / kHidden);
  const uint32_t first = shard.first_kv_head * kQueriesPerKv;
  for (uint32_t h = first; h < first + shard.kv_heads * kQueriesPerKv; ++h) {
    for (uint32_t t = 0; t < count; ++t) {
      Head query{};
      AddProduct(RowOf(normed, t), layers_[layer].query[h], query);
      Rotate(position + t, query);
      std::ranges::copy(AttendOne(query, layer, h / kQueriesPerKv, position + t, store),
                        attention.data() + (size_t{h} * count + t) * kHeadSize);
    }
  }
}

void Model::AddOutput(const Layer& layer, std::span<const float> attention,
                      std::span<float> x) const {
  const size_t count = x.size() / kHidden;
  std::vector<float> heads(kQueryHeads * kHeadSize);
  for (size_t t = 0; t < count; ++t) {
    for (size_t h = 0; h < kQueryHeads; ++h) {
      std::copy_n(attention.data() + (h * count + t) * kHeadSize, kHeadSize,
                  heads.data() + h * kHeadSize);
    }
    AddProduct(heads, layer.output, x.subspan(t * kHidden, kHidden));
  }
}

void Model::AddMlp(const Layer& layer, std::span<float> x) const {
  for (size_t t = 0; t < x.size() / kHidden; ++t) {
    const Row in = Normed(RowOf(x, t));
    std::vector<float> gate(kMlp);
    std::vector<float> up(kMlp);
    AddProduct(in, layer.gate, gate);
    AddProduct(in, layer.up, up);
    for (size_t i = 0; i < kMlp; ++i) up[i] *= gate[i] / (1 + std::exp(-gate[i]));
    AddProduct(up, layer.down, x.subspan(t * kHidden, kHidden));
  }
}

}  // namespace disagg
