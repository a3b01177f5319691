#include "src/cli/bench/kv/kv_case.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/kv_model.h"
#include "src/cli/common/scatter.h"
#include "src/core/kv/reshard.h"

namespace kvxfer::cli::kv_bench {
namespace {

kvxfer::KvModel LayoutModelOf(const KvModel& model) {
  const KvElement element = model.element_bytes == 1   ? KvElement::kFp8E4M3
                            : model.element_bytes == 4 ? KvElement::kFp32
                                                       : KvElement::kBf16;
  if (model.fused) {
    return {.layers = model.layers, .heads = 1, .k_size = model.fused_width, .element = element};
  }
  return {.layers = model.layers,
          .heads = model.kv_heads,
          .k_size = model.head_size,
          .v_size = model.head_size,
          .element = element};
}

absl::StatusOr<std::vector<KvModel>> ModelsOf(const Options& options) {
  if (!options.model.empty()) {
    auto model = LoadKvModel(options.model);
    if (!model.ok()) return model.status();
    return std::vector{*std::move(model)};
  }
  const auto& known = KnownKvModels();
  return options.mode->two_sizes ? std::vector{known.front()} : known;
}

Instance InstanceOf(const KvSide& side, uint64_t seed) {
  return {.role = side.name,
          .tp = static_cast<uint32_t>(side.tp),
          .block_tokens = static_cast<uint32_t>(side.block_tokens.value_or(16)),
          .order = side.layout,
          .seed = seed};
}

std::vector<uint32_t> Ranks(const std::vector<Share>& shares, uint32_t Share::*side) {
  std::vector<uint32_t> ranks(shares.size());
  std::ranges::transform(shares, ranks.begin(), [side](const Share& share) { return share.*side; });
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

}  // namespace

std::string Case::Name() const {
  return absl::StrCat(model, " tp ", prefill.tp, ">", decode.tp, " ", prefill.order, ">",
                      decode.order);
}

Json Case::ToJson() const {
  return {{"model", model},
          {"prefill_tp", prefill.tp},
          {"decode_tp", decode.tp},
          {"prefill_layout", prefill.order},
          {"decode_layout", decode.order},
          {"tokens", tokens}};
}

uint32_t Case::BlocksOf(const Instance& instance) const {
  return static_cast<uint32_t>((tokens + instance.block_tokens - 1) / instance.block_tokens);
}

std::vector<uint32_t> Case::IdsOf(const Instance& instance) const {
  return Permutation(BlocksOf(instance), instance.seed);
}

absl::StatusOr<KvLayout> Case::LayoutOf(const Instance& instance, uint32_t rank,
                                        uint32_t blocks) const {
  const auto heads = HeadsOf(kv, rank, instance.tp);
  if (!heads.ok()) return heads.status();
  KvTensor tensor;
  if (kv.v_size == 0) {
    tensor.axes = "BNC";
    tensor.shape = {blocks, instance.block_tokens, kv.k_size};
  } else if (instance.order == "NHD") {
    tensor.axes = "2BNHD";
    tensor.shape = {2, blocks, instance.block_tokens, heads->count, kv.k_size};
  } else {
    tensor.axes = "2BHND";
    tensor.shape = {2, blocks, heads->count, instance.block_tokens, kv.k_size};
  }
  tensor.strides.resize(tensor.shape.size());
  uint64_t extent = 1;
  for (size_t i = tensor.shape.size(); i-- > 0; extent *= tensor.shape[i]) {
    tensor.strides[i] = extent;
  }
  const KvShard shard{.tp_rank = rank, .tp_size = instance.tp, .layers = kv.layers};
  return KvLayout::FromTensors(kv, shard, {&tensor, 1});
}

absl::StatusOr<Case::Bytes> Case::CacheBytes(bool alone) const {
  const auto all = SharesOf(*this);
  if (!all.ok()) return all.status();
  const std::vector<Share> shares = alone ? OwnShares(*all) : *all;
  const auto bytes = [&](const Instance& instance,
                         const std::vector<uint32_t>& ranks) -> absl::StatusOr<uint64_t> {
    // All ranks have caches of the same size.
    const auto layout = LayoutOf(instance, ranks.front(), BlocksOf(instance));
    if (!layout.ok()) return layout.status();
    return ranks.size() * kv.layers * layout->tensor_bytes(0);
  };
  const auto of_prefill = bytes(prefill, PrefillRanks(shares));
  if (!of_prefill.ok()) return of_prefill.status();
  const auto of_decode = bytes(decode, DecodeRanks(*all));
  if (!of_decode.ok()) return of_decode.status();
  return Bytes{.prefill = *of_prefill, .decode = *of_decode};
}

absl::StatusOr<std::vector<Case>> CasesOf(const Options& options) {
  auto models = ModelsOf(options);
  if (!models.ok()) return models.status();
  // Two sizes show that retained memory does not depend on the size of a request.
  std::vector<uint64_t> sizes = {options.tokens};
  if (options.mode->two_sizes) sizes = {std::max<uint64_t>(options.tokens / 4, 1), options.tokens};
  std::vector<Case> cases;
  for (const KvModel& model : *models) {
    for (const uint64_t tokens : sizes) {
      cases.push_back({.model = model.name,
                       .kv = LayoutModelOf(model),
                       .prefill = InstanceOf(options.prefill, InitiatorSeed(1)),
                       .decode = InstanceOf(options.decode, TargetSeed(1)),
                       .tokens = tokens});
    }
  }
  return cases;
}

absl::StatusOr<std::vector<Share>> SharesOf(const Case& one) {
  std::vector<Share> shares;
  for (uint32_t rank = 0; rank < one.decode.tp; ++rank) {
    const auto sources = SourcesOf(one.kv, one.prefill.tp, rank, one.decode.tp);
    if (!sources.ok()) return sources.status();
    if (std::ranges::none_of(*sources, [](const KvSource& s) { return s.tp_rank == 0; })) continue;
    for (const KvSource& source : *sources) {
      shares.push_back({.prefill = source.tp_rank, .decode = rank, .heads = source.heads});
    }
  }
  std::ranges::stable_sort(shares, {}, &Share::prefill);
  return shares;
}

std::vector<Share> OwnShares(const std::vector<Share>& shares) {
  std::vector<Share> own;
  std::ranges::copy_if(shares, std::back_inserter(own),
                       [](const Share& share) { return share.prefill == 0; });
  return own;
}

std::vector<uint32_t> PrefillRanks(const std::vector<Share>& shares) {
  return Ranks(shares, &Share::prefill);
}

std::vector<uint32_t> DecodeRanks(const std::vector<Share>& shares) {
  return Ranks(shares, &Share::decode);
}

}  // namespace kvxfer::cli::kv_bench
