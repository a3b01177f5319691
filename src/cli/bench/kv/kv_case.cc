#include "src/cli/bench/kv/kv_case.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/kv_model.h"
#include "src/core/base/strings.h"
#include "src/core/kv/reshard.h"

namespace kvxfer::cli::kv_bench {
namespace {

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

// The first word of the content of a head and token; the following words count up from it.
uint64_t FirstWord(uint32_t layer, size_t part, uint64_t token, uint32_t head) {
  const uint64_t place = ((layer * 2ull + part) << 48) + (uint64_t{head} << 40) + (token << 8) + 1;
  return place * 0x9e3779b97f4a7c15;
}

}  // namespace

std::string Case::Name() const {
  return absl::StrCat(model, " tp ", prefill.tp, ">", decode.tp, " ", prefill.order, ">",
                      decode.order);
}

Outcome Case::Row() const {
  return {.json = {{"model", model},
                   {"prefill_tp", prefill.tp},
                   {"decode_tp", decode.tp},
                   {"prefill_layout", prefill.order},
                   {"decode_layout", decode.order},
                   {"tokens", tokens}},
          .cells = {model, absl::StrCat(prefill.tp, ">", decode.tp)}};
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
                       .kv = LibraryModel(model),
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

std::vector<uint64_t> TensorsAt(const KvLayout& layout, uint64_t base) {
  std::vector<uint64_t> tensors;
  for (uint32_t layer = 0; layer < layout.shard().layers; ++layer) {
    tensors.push_back(base + layer * layout.tensor_bytes(0));
  }
  return tensors;
}

uint64_t CacheBytes(const KvLayout& layout) {
  return layout.shard().layers * layout.tensor_bytes(0);
}

absl::StatusOr<Rank> Rank::Create(const Case& one, const Instance& instance, uint32_t rank,
                                  bool live, const Options& options) {
  const std::string name = absl::StrCat(instance.role, "-", rank);
  const auto layout = one.LayoutOf(instance, rank, live ? one.BlocksOf(instance) : 1);
  if (!layout.ok()) return layout.status();
  const MemoryChoice& choice =
      instance.role == one.prefill.role ? options.memory.here : options.memory.there;
  auto memory = CacheMemory::Allocate(choice, CacheBytes(*layout));
  if (!memory.ok()) return Annotate(memory.status(), name);
  Rank made(*layout, *std::move(memory), one.IdsOf(instance), live ? one.tokens : 0);
  auto agent = MakeAgent({.role = name, .backends = options.backend, .own_port = true});
  if (!agent.ok()) return Annotate(agent.status(), name);
  made.agent_ = *std::move(agent);
  const auto region = made.agent_->RegisterMemory(made.memory_.span(), Access::kReadWrite);
  if (!region.ok()) return Annotate(region.status(), name);
  const absl::Status status =
      made.agent_->RegisterKvCache(CacheName(kCacheName), *layout, TensorsAt(*layout, made.base()));
  if (!status.ok()) return Annotate(status, name);
  return made;
}

template <typename Visit>
absl::Status Rank::ForEachOfLayer(KvHeads heads, uint32_t layer, std::byte* memory,
                                  Visit visit) const {
  const uint32_t block_tokens = layout_.block_tokens();
  for (size_t i = 0; i < layout_.parts().size(); ++i) {
    const KvLayout::Part& part = layout_.parts()[i];
    for (uint64_t token = 0; token < tokens_; ++token) {
      std::byte* const at = memory + part.offset + ids_[token / block_tokens] * part.block_stride +
                            token % block_tokens * part.token_stride;
      for (uint32_t head = heads.first; head < heads.first + heads.count; ++head) {
        const std::span bytes(at + (head - layout_.heads().first) * part.head_stride,
                              static_cast<size_t>(part.bytes));
        if (visit(bytes, FirstWord(layer, i, token, head))) continue;
        return absl::DataLossError(absl::StrCat(agent_->name(), ": wrong content at layer ", layer,
                                                ", ", i == 0 ? "K" : "V", ", token ", token,
                                                ", head ", head));
      }
    }
  }
  return absl::OkStatus();
}

template <typename Visit>
absl::Status Rank::ForEach(KvHeads heads, Touch touch, Visit visit) const {
  std::vector<Stretch> layers(layout_.shard().layers);
  const uint64_t bytes = layout_.tensor_bytes(0);
  for (size_t i = 0; i < layers.size(); ++i) layers[i] = {.offset = i * bytes, .bytes = bytes};
  return memory_.ForEach(layers, touch, [&](size_t layer, std::span<std::byte> memory) {
    return ForEachOfLayer(heads, static_cast<uint32_t>(layer), memory.data(), visit);
  });
}

absl::Status Rank::Fill() const {
  return ForEach(layout_.heads(), Touch::kUpdate, [](std::span<std::byte> bytes, uint64_t word) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(word), ++word) {
      std::memcpy(&bytes[at], &word, std::min(sizeof(word), bytes.size() - at));
    }
    return true;
  });
}

absl::Status Rank::Clear() const { return memory_.Zero({.offset = 0, .bytes = memory_.size()}); }

absl::Status Rank::Check(KvHeads heads) const {
  return ForEach(heads, Touch::kRead, [](std::span<const std::byte> bytes, uint64_t word) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(word), ++word) {
      const size_t size = std::min(sizeof(word), bytes.size() - at);
      if (std::memcmp(&bytes[at], &word, size) != 0) return false;
    }
    return true;
  });
}

}  // namespace kvxfer::cli::kv_bench
