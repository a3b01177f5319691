#include "examples/disagg_cpu/reference.h"

#include "examples/disagg_cpu/model.h"

namespace disagg {
namespace {

class PlainStore final : public KvStore {
 public:
  explicit PlainStore(size_t positions)
      : positions_(positions), keys_(kLayers * kKvHeads * positions * kHeadSize), values_(keys_) {}

  float* Key(uint32_t layer, uint32_t head, uint32_t position) override {
    return keys_.data() + At(layer, head, position);
  }
  float* Value(uint32_t layer, uint32_t head, uint32_t position) override {
    return values_.data() + At(layer, head, position);
  }

 private:
  size_t At(size_t layer, size_t head, size_t position) const {
    return ((layer * kKvHeads + head) * positions_ + position) * kHeadSize;
  }

  const size_t positions_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

}  // namespace

absl::StatusOr<std::vector<uint32_t>> GenerateAlone(uint64_t model_seed,
                                                    std::span<const uint32_t> prompt,
                                                    uint32_t count) {
  const Model model(model_seed);
  PlainStore store(prompt.size() + count);
  std::vector<uint32_t> tokens;
  auto position = static_cast<uint32_t>(prompt.size());
  for (auto token = model.Forward(prompt, 0, store, {});; ++position) {
    if (!token.ok()) return token.status();
    tokens.push_back(*token);
    if (tokens.size() >= count) return tokens;
    token = model.Forward({&tokens.back(), 1}, position, store, {});
  }
}

}  // namespace disagg
