#include "src/cli/bench/kv/rank.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/cli/common/agent_setup.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli::kv_bench {
namespace {

// The first word of the content of a head and token; the following words count up from it.
uint64_t FirstWord(uint32_t layer, size_t part, uint64_t token, uint32_t head) {
  const uint64_t place = ((layer * 2ull + part) << 48) + (uint64_t{head} << 40) + (token << 8) + 1;
  return place * 0x9e3779b97f4a7c15;
}

}  // namespace

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
      made.agent_->RegisterKvCache(kCacheName, *layout, TensorsAt(*layout, made.base()));
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
