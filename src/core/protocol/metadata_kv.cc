#include "src/core/protocol/metadata_kv.h"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/kv_cache.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/core/kv/kv_tensors.h"
#include "src/core/protocol/metadata.pb.h"

namespace kvxfer {
namespace {

void EncodeKvPart(const KvLayout::Part& part, proto::KvPart& out) {
  out.set_tensor(part.tensor);
  out.set_offset(part.offset);
  out.set_layer_stride(part.layer_stride);
  out.set_block_stride(part.block_stride);
  out.set_token_stride(part.token_stride);
  out.set_head_stride(part.head_stride);
  out.set_bytes(part.bytes);
}

KvLayout::Part DecodeKvPart(const proto::KvPart& in) {
  return {.tensor = in.tensor(),
          .offset = in.offset(),
          .layer_stride = in.layer_stride(),
          .block_stride = in.block_stride(),
          .token_stride = in.token_stride(),
          .head_stride = in.head_stride(),
          .bytes = in.bytes()};
}

absl::StatusOr<KvLayout> DecodeKvLayout(const proto::KvCache& in) {
  if (in.element() > static_cast<uint32_t>(KvElement::kFp32)) {
    return absl::InvalidArgumentError(absl::StrCat("element ", in.element(), " is unknown"));
  }
  const KvModel model{.layers = in.model_layers(),
                      .heads = in.model_heads(),
                      .k_size = in.k_size(),
                      .v_size = in.v_size(),
                      .element = static_cast<KvElement>(in.element()),
                      .fingerprint = in.fingerprint()};
  const KvShard shard{.tp_rank = in.tp_rank(),
                      .tp_size = in.tp_size(),
                      .first_layer = in.first_layer(),
                      .layers = in.layers()};
  std::vector<KvLayout::Part> parts;
  for (const proto::KvPart& part : in.parts()) parts.push_back(DecodeKvPart(part));
  // FromParts accepts exactly what FromTensors can produce, so a peer's layout is as safe as a
  // local one.
  return KvLayout::FromParts(model, shard, in.blocks(), in.block_tokens(), parts);
}

// Accepts exactly what RegisterKvCache accepts: transfers are planned from the table without
// further checks of the layout.
absl::Status DecodeKvCache(const proto::KvCache& in, KvCacheTable& out) {
  if (auto status = CheckName("KV cache", in.name()); !status.ok()) return status;
  absl::StatusOr<KvLayout> layout = DecodeKvLayout(in);
  if (!layout.ok()) return layout.status();
  std::vector<uint64_t> tensors(in.tensors().begin(), in.tensors().end());
  // A peer's addresses become targets of writes, so they get the same checks as local
  // registrations.
  if (absl::Status status = CheckKvTensors("peer's", *layout, tensors); !status.ok()) return status;
  KvCacheInfo cache{.id = in.id(), .layout = *std::move(layout), .tensors = std::move(tensors)};
  if (out.emplace(in.name(), std::move(cache)).second) return absl::OkStatus();
  return absl::InvalidArgumentError("occurs twice");
}

}  // namespace

void EncodeKvCaches(const KvCacheTable& caches, proto::Metadata& out) {
  for (const auto& [name, cache] : caches) {
    proto::KvCache& encoded = *out.add_kv_caches();
    const KvModel& model = cache.layout.model();
    const KvShard& shard = cache.layout.shard();
    encoded.set_name(name);
    encoded.set_model_layers(model.layers);
    encoded.set_model_heads(model.heads);
    encoded.set_k_size(model.k_size);
    encoded.set_v_size(model.v_size);
    encoded.set_element(static_cast<uint32_t>(model.element));
    encoded.set_fingerprint(model.fingerprint);
    encoded.set_tp_rank(shard.tp_rank);
    encoded.set_tp_size(shard.tp_size);
    encoded.set_first_layer(shard.first_layer);
    encoded.set_layers(shard.layers);
    encoded.set_blocks(cache.layout.blocks());
    encoded.set_block_tokens(cache.layout.block_tokens());
    for (const KvLayout::Part& part : cache.layout.parts()) {
      EncodeKvPart(part, *encoded.add_parts());
    }
    for (const uint64_t tensor : cache.tensors) encoded.add_tensors(tensor);
    encoded.set_id(cache.id);
  }
}

absl::StatusOr<KvCacheTable> DecodeKvCaches(const proto::Metadata& in) {
  // Checked before decoding: each cache may cost milliseconds (kv_tensors.cc).
  if (static_cast<size_t>(in.kv_caches_size()) > kMaxKvCaches) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata: ", in.kv_caches_size(), " KV caches, at most ", kMaxKvCaches));
  }
  KvCacheTable caches;
  for (const proto::KvCache& cache : in.kv_caches()) {
    absl::Status status = DecodeKvCache(cache, caches);
    if (!status.ok())
      return Annotate(status,
                      absl::StrCat("metadata: KV cache ", Printable(cache.name(), kMaxNameBytes)));
  }
  return caches;
}

}  // namespace kvxfer
