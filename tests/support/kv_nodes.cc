#include "tests/support/kv_nodes.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/support/memory_view.h"
#include "tests/support/pattern.h"

namespace kvxfer::testing {
namespace {

constexpr uint8_t kUntouched = 0xa5;
// Tensors begin at such distances, so that what is behind one belongs to none.
constexpr size_t kAlign = 4096;

__attribute__((no_sanitize("thread"))) void Store(volatile std::byte* to, const uint8_t* from,
                                                  size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) to[i] = std::byte{from[i]};
}

// Writes runs of bytes that are not there yet, and no other byte.
void AddMissing(std::span<std::byte> to, std::span<const uint8_t> from) {
  const ReadView there(to);
  const auto has = [&](size_t at) { return there.bytes()[at] == std::byte{from[at]}; };
  for (size_t at = 0; at < to.size();) {
    if (has(at)) {
      ++at;
      continue;
    }
    size_t end = at + 1;
    while (end < to.size() && !has(end)) ++end;
    WriteView view(to.subspan(at, end - at));
    std::memcpy(view.bytes().data(), from.data() + at, end - at);
    at = end;
  }
}

size_t Rounded(size_t bytes) { return (bytes / kAlign + 1) * kAlign; }

}  // namespace

absl::StatusOr<std::unique_ptr<KvNode>> KvNode::Create(const Flavour& flavour,
                                                       const AgentOptions& options,
                                                       const KvModel& model, const KvShape& shape,
                                                       const KvShard& shard) {
  std::unique_ptr<KvNode> node(new KvNode);
  node->shape_ = shape;
  const auto [first, count] = HeadRange(model.heads, shard.tp_size, shard.tp_rank);
  node->cache_ = MakeCache(model, shard, first, count, shape.form, shape.order, shape.blocks,
                           shape.block_tokens, nullptr, kUntouched);
  size_t bytes = 0;
  for (const auto& layer : node->cache_.memory) {
    for (const auto& tensor : layer) bytes += Rounded(tensor.size());
  }
  auto made = Node::Create(options, flavour.memory, bytes);
  if (!made.ok()) return made.status();
  node->node_ = *std::move(made);
  FillWith(node->node_.memory.bytes(), std::byte{kUntouched});
  std::vector<uint64_t> addresses;
  uint64_t at = node->node_.memory.address();
  for (const auto& layer : node->cache_.memory) {
    for (const auto& tensor : layer) {
      addresses.push_back(at);
      at += Rounded(tensor.size());
    }
  }
  auto layout = KvLayout::FromTensors(model, shard, node->cache_.tensors);
  if (!layout.ok()) return layout.status();
  auto status = node->agent().RegisterKvCache(CacheName("kv"), *layout, addresses);
  if (!status.ok()) return status;
  return node;
}

KvNode::~KvNode() = default;

void KvNode::Expect(const KvPlace& place, uint8_t salt, uint32_t first_layer, uint32_t end_layer) {
  const KvModel& model = cache_.model;
  const uint32_t first = std::max(first_layer, cache_.shard.first_layer);
  const uint32_t end = std::min(end_layer, cache_.shard.first_layer + cache_.shard.layers);
  for (uint32_t layer = first; layer < end; ++layer) {
    for (int kv = 0; kv < (model.v_size > 0 ? 2 : 1); ++kv) {
      const uint32_t size = kv == 1 ? model.v_size : model.k_size;
      for (uint64_t token = 0; token < place.tokens; ++token) {
        const uint64_t at = place.first_token + token;
        for (uint32_t head = 0; head < cache_.heads; ++head) {
          for (uint32_t e = 0; e < size; ++e) {
            uint8_t* const bytes = cache_.At(layer, kv, place.ids[at / shape_.block_tokens],
                                             static_cast<uint32_t>(at % shape_.block_tokens),
                                             cache_.first_head + head, e);
            for (uint32_t b = 0; b < BytesOf(model.element); ++b) {
              bytes[b] =
                  static_cast<uint8_t>(salt + ValueOf(layer, kv, static_cast<uint32_t>(token),
                                                      cache_.first_head + head, e, b));
            }
          }
        }
      }
    }
  }
}

std::vector<std::span<std::byte>> KvNode::Tensors() {
  std::vector<std::span<std::byte>> tensors;
  size_t at = 0;
  for (const auto& layer : cache_.memory) {
    for (const auto& tensor : layer) {
      tensors.push_back(node_.memory.bytes().subspan(at, Rounded(tensor.size())));
      at += tensors.back().size();
    }
  }
  return tensors;
}

void KvNode::Fill(const KvPlace& place, uint8_t salt) {
  Expect(place, salt, 0, kAllLayers);
  const auto tensors = Tensors();
  size_t i = 0;
  for (const auto& layer : cache_.memory) {
    for (const auto& tensor : layer) {
      WriteView view(tensors[i++].first(tensor.size()));
      std::memcpy(view.bytes().data(), tensor.data(), tensor.size());
    }
  }
}

void KvNode::Add(const KvPlace& place, uint8_t salt) {
  Expect(place, salt, 0, kAllLayers);
  const auto tensors = Tensors();
  size_t i = 0;
  for (const auto& layer : cache_.memory) {
    for (const auto& tensor : layer) AddMissing(tensors[i++].first(tensor.size()), tensor);
  }
}

void KvNode::Overwrite(const KvPlace& place, uint8_t salt) {
  Expect(place, salt, 0, kAllLayers);
  const auto tensors = Tensors();
  size_t i = 0;
  for (const auto& layer : cache_.memory) {
    for (const auto& tensor : layer) {
      WriteView view(tensors[i++].first(tensor.size()));
      Store(view.bytes().data(), tensor.data(), tensor.size());
    }
  }
}

bool KvNode::Holds(const KvPlace& place, uint8_t salt, uint32_t first_layer, uint32_t layers) {
  Expect(place, salt, first_layer,
         layers == kAllLayers ? cache_.model.layers : first_layer + layers);
  const auto tensors = Tensors();
  bool holds = node_.memory.GuardsIntact();
  size_t i = 0;
  for (const auto& layer : cache_.memory) {
    for (const auto& tensor : layer) {
      const ReadView view(tensors[i++]);
      holds &= std::memcmp(view.bytes().data(), tensor.data(), tensor.size()) == 0;
      holds &= std::ranges::all_of(view.bytes().subspan(tensor.size()),
                                   [](std::byte byte) { return byte == std::byte{kUntouched}; });
    }
  }
  return holds;
}

absl::StatusOr<KvNodes> KvNodes::Create(const Flavour& flavour, const std::string& name,
                                        const KvModel& model, const KvShape& shape, Change change) {
  KvNodes nodes;
  const uint32_t each = model.layers / shape.pp;
  for (uint32_t stage = 0; stage < shape.pp; ++stage) {
    for (uint32_t rank = 0; rank < shape.tp; ++rank) {
      nodes.names.push_back(absl::StrCat(name, "-", nodes.names.size()));
      AgentOptions options = OptionsFor(flavour, nodes.names.back());
      change(options);
      auto node = KvNode::Create(
          flavour, options, model, shape,
          {.tp_rank = rank, .tp_size = shape.tp, .first_layer = stage * each, .layers = each});
      if (!node.ok()) return node.status();
      nodes.ranks.push_back(*std::move(node));
    }
  }
  return nodes;
}

KvTensor KvSlab::Tensor() const {
  const uint64_t heads = HeadRange(model.heads, shard.tp_size, shard.tp_rank).second;
  const uint64_t token = model.k_size + model.v_size;
  const uint64_t head = token * block_tokens;
  const uint64_t layer = head * heads;
  return {.axes = "BLHNC",
          .shape = {blocks, shard.layers, heads, block_tokens, token},
          .strides = {layer * shard.layers, layer, head, token, 1}};
}

uint64_t KvSlab::bytes() const { return blocks * Tensor().strides[0] * BytesOf(model.element); }

absl::Status KvSlab::Register(Agent& agent, uint64_t address) const {
  const KvTensor tensor = Tensor();
  auto layout = KvLayout::FromTensors(model, shard, std::span(&tensor, 1));
  return layout.ok() ? agent.RegisterKvCache(CacheName("kv"), *layout, std::span(&address, 1))
                     : layout.status();
}

absl::Status Introduce(KvNodes& a, KvNodes& b) {
  for (const auto& other : b.ranks) {
    const auto metadata = other->agent().Metadata();
    if (!metadata.ok()) return metadata.status();
    for (const auto& one : a.ranks) {
      if (auto added = one->agent().AddPeer(*metadata); !added.ok()) return added.status();
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::testing
