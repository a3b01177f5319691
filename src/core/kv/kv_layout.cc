#include "kvxfer/kv_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/core/kv/kv_range.h"

namespace kvxfer {
namespace {

// Limits far beyond any real cache. They keep every product below from overflowing.
constexpr uint32_t kMaxLayers = 4096;
constexpr uint32_t kMaxHeads = 65536;
constexpr uint32_t kMaxHeadSize = 1 << 20;
constexpr uint64_t kMaxBlocks = uint64_t{1} << 32;
constexpr uint32_t kMaxBlockTokens = 1 << 20;
constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 56;

struct Element {
  uint32_t bytes;
  std::string_view name;
};
constexpr std::array kElements = {Element{1, "bytes"},    Element{1, "fp8_e4m3"},
                                  Element{1, "fp8_e5m2"}, Element{2, "fp16"},
                                  Element{2, "bf16"},     Element{4, "fp32"}};

const Element& InfoOf(KvElement element) {
  const auto index = static_cast<size_t>(element);
  return kElements[std::min(index, kElements.size() - 1)];
}

absl::Status CheckRange(std::string_view what, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("KV cache: ", ToAbsl(what), " is ", value,
                                                 ", not within ", least, " and ", most));
}

absl::Status CheckModel(const KvModel& model) {
  absl::Status status = CheckRange("layers", model.layers, 1, kMaxLayers);
  status.Update(CheckRange("heads", model.heads, 1, kMaxHeads));
  status.Update(CheckRange("k_size", model.k_size, 1, kMaxHeadSize));
  status.Update(CheckRange("v_size", model.v_size, 0, kMaxHeadSize));
  const auto element = static_cast<uint64_t>(model.element);
  status.Update(CheckRange("element", element, 0, kElements.size() - 1));
  return status;
}

// One axis of a tensor; lengths and strides are in elements, or in bytes in CheckParts.
struct Axis {
  char letter = 0;
  uint64_t length = 0;
  uint64_t stride = 0;
};

std::string Called(const KvTensor& tensor) {
  return absl::StrCat("KV tensor \"", tensor.axes, "\"");
}

absl::StatusOr<std::vector<Axis>> AxesOf(const KvTensor& tensor) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(Called(tensor), ": ", why...));
  };
  const size_t count = tensor.axes.size();
  if (count == 0 || tensor.shape.size() != count || tensor.strides.size() != count) {
    return refuse("has ", count, " axes, ", tensor.shape.size(), " lengths and ",
                  tensor.strides.size(), " strides");
  }
  std::vector<Axis> axes;
  for (size_t i = 0; i < count; ++i) {
    const char letter = tensor.axes[i];
    if (std::string_view("L2BNHDC").find(letter) == std::string_view::npos) {
      return refuse("axis '", std::string(1, letter), "' is none of L, 2, B, N, H, D and C");
    }
    if (tensor.axes.find(letter, i + 1) != std::string::npos) {
      return refuse("axis ", std::string(1, letter), " is there twice");
    }
    if (tensor.shape[i] == 0) return refuse("axis ", std::string(1, letter), " is empty");
    axes.push_back({letter, tensor.shape[i], tensor.strides[i]});
  }
  return axes;
}

// Checks that no axis overlaps another. Sorted by stride, each axis must step over all that the
// inner ones cover. `*extent` is at first the size that the contiguous innermost elements cover,
// and at the end the size that all axes cover, in the same unit as the strides. `most` bounds it.
absl::Status CheckApart(std::string_view called, std::string_view unit, std::vector<Axis> axes,
                        uint64_t most, uint64_t* extent) {
  // The stride of an axis of length 1 is never used, and frameworks leave any value there.
  std::erase_if(axes, [](const Axis& axis) { return axis.length == 1; });
  std::ranges::sort(axes, {}, &Axis::stride);
  char inner = 0;
  for (const Axis& axis : axes) {
    if (axis.stride < *extent) {
      return absl::InvalidArgumentError(
          absl::StrCat(ToAbsl(called), ": axis ", std::string(1, axis.letter), " has a stride of ",
                       axis.stride, " ", ToAbsl(unit), ", and overlaps ",
                       inner == 0 ? "the elements" : absl::StrCat("axis ", std::string(1, inner)),
                       ", which reach over ", *extent));
    }
    if (axis.stride > most || axis.length - 1 > (most - *extent) / axis.stride) {
      return absl::InvalidArgumentError(absl::StrCat(ToAbsl(called), ": axis ",
                                                     std::string(1, axis.letter), ", ", axis.length,
                                                     " times ", axis.stride, ", is too long"));
    }
    *extent += (axis.length - 1) * axis.stride;
    inner = axis.letter;
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t BytesOf(KvElement element) { return InfoOf(element).bytes; }
std::string_view NameOf(KvElement element) { return InfoOf(element).name; }

absl::Status CheckSameModel(const KvModel& ours, const KvModel& theirs, std::string_view peer) {
  const auto differ = [&](std::string_view field, const auto& here, const auto& there) {
    return absl::InvalidArgumentError(absl::StrCat("the KV caches of this agent and of ",
                                                   ToAbsl(peer), " differ in ", ToAbsl(field), ": ",
                                                   here, " here, ", there, " there"));
  };
  if (ours.layers != theirs.layers) return differ("layers", ours.layers, theirs.layers);
  if (ours.heads != theirs.heads) return differ("heads", ours.heads, theirs.heads);
  if (ours.k_size != theirs.k_size) return differ("k_size", ours.k_size, theirs.k_size);
  if (ours.v_size != theirs.v_size) return differ("v_size", ours.v_size, theirs.v_size);
  if (ours.element != theirs.element) {
    return differ("element", ToAbsl(NameOf(ours.element)), ToAbsl(NameOf(theirs.element)));
  }
  if (ours.fingerprint != theirs.fingerprint) {
    const auto hex = [](uint64_t value) { return absl::StrCat("0x", absl::Hex(value)); };
    return differ("fingerprint", hex(ours.fingerprint), hex(theirs.fingerprint));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvHeads> HeadsOf(const KvModel& model, uint32_t tp_rank, uint32_t tp_size) {
  if (tp_size == 0 || tp_rank >= tp_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: tp_rank ", tp_rank, " of tp_size ", tp_size));
  }
  if (model.heads % tp_size == 0 && model.heads > 0) {
    const uint32_t each = model.heads / tp_size;
    return KvHeads{.first = tp_rank * each, .count = each};
  }
  if (model.heads > 0 && tp_size % model.heads == 0) {
    return KvHeads{.first = tp_rank / (tp_size / model.heads), .count = 1};
  }
  return absl::InvalidArgumentError(absl::StrCat("KV cache: ", model.heads,
                                                 " heads do not divide over tp_size ", tp_size,
                                                 ", nor the other way round"));
}

// Checks model and shard, and returns a layout that has no blocks and parts yet.
absl::StatusOr<KvLayout> KvLayout::Begin(const KvModel& model, const KvShard& shard) {
  KvLayout layout;
  layout.model_ = model;
  layout.shard_ = shard;
  if (absl::Status status = CheckModel(model); !status.ok()) return status;
  if (!KvRangeWithin(shard.first_layer, shard.layers, 0, model.layers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: ", shard.layers, " layers from ", shard.first_layer,
                     " on are not within the model's ", model.layers));
  }
  absl::StatusOr<KvHeads> heads = HeadsOf(model, shard.tp_rank, shard.tp_size);
  if (!heads.ok()) return heads.status();
  layout.heads_ = *heads;
  return layout;
}

absl::StatusOr<KvLayout> KvLayout::FromTensors(const KvModel& model, const KvShard& shard,
                                               std::span<const KvTensor> tensors) {
  absl::StatusOr<KvLayout> begun = Begin(model, shard);
  if (!begun.ok()) return begun;
  KvLayout& layout = *begun;
  const bool fused = model.v_size == 0;
  if (tensors.empty() || tensors.size() > (fused ? 1u : 2u)) {
    return absl::InvalidArgumentError(absl::StrCat("KV cache: ", tensors.size(), " tensors; ",
                                                   fused ? "one is needed" : "1 or 2 are needed"));
  }
  const bool apart = tensors.size() == 2;
  for (const KvTensor& tensor : tensors) {
    const bool first = layout.tensors_ == 0;
    absl::Status status = layout.Take(tensor, first, !fused && (!apart || !first));
    if (!status.ok()) return status;
  }
  return begun;
}

// Adds one tensor's parts. `holds_k`: K, or the fused entry; `holds_v`: V.
absl::Status KvLayout::Take(const KvTensor& tensor, bool holds_k, bool holds_v) {
  absl::StatusOr<std::vector<Axis>> axes = AxesOf(tensor);
  if (!axes.ok()) return axes.status();
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(Called(tensor), ": ", why...));
  };
  const auto find = [&](char letter) -> const Axis* {
    const auto it = std::ranges::find(*axes, letter, &Axis::letter);
    return it == axes->end() ? nullptr : &*it;
  };
  const bool both = holds_k && holds_v;
  const Axis* const kv = find('2');
  const Axis* const packed = find('C');
  const Axis* const single = find('D');
  if ((packed == nullptr) == (single == nullptr)) return refuse("needs one of the axes C and D");
  if (kv != nullptr && (packed != nullptr || !both)) {
    return refuse("axis 2 is for K and V in one tensor, with axis D");
  }
  if (both && kv == nullptr && packed == nullptr) {
    return refuse("K and V are in it; needs axis 2 or C");
  }
  const uint64_t element = BytesOf(model_.element);
  const uint64_t k = holds_k ? model_.k_size : 0;
  const uint64_t v = holds_v ? model_.v_size : 0;
  const auto length = [&](char letter, uint64_t want) -> absl::Status {
    const Axis* const axis = find(letter);
    if (axis == nullptr || axis->length == want) return absl::OkStatus();
    return refuse("axis ", std::string(1, letter), " has a length of ", axis->length, ", and ",
                  want, " are the model's");
  };
  absl::Status status = length('L', shard_.layers);
  status.Update(length('H', heads_.count));
  status.Update(length('2', 2));
  status.Update(length('C', k + v));
  status.Update(length('D', holds_k ? k : v));
  // One stride cannot lead from K to V if their sizes differ.
  if (kv != nullptr && k != v) status.Update(refuse("axis 2 needs K and V of one size"));
  for (const char letter : {'B', 'N', 'H'}) {
    const bool may_lack = letter == 'H' && heads_.count == 1;
    if (find(letter) == nullptr && !may_lack) {
      status.Update(refuse("axis ", std::string(1, letter), " is missing"));
    }
  }
  if (!status.ok()) return status;
  const Axis& inner = packed != nullptr ? *packed : *single;
  if (inner.length > 1 && inner.stride != 1) {
    return refuse("axis ", std::string(1, inner.letter), " has a stride of ", inner.stride,
                  ": elements have to follow each other");
  }
  status = CheckRange("blocks", find('B')->length, 1, kMaxBlocks);
  status.Update(CheckRange("tokens per block", find('N')->length, 1, kMaxBlockTokens));
  uint64_t extent = 1;
  // Transfers are built from these strides without further checks, so two elements must never share
  // a byte: a target byte would be written twice.
  status.Update(CheckApart(Called(tensor), "elements", *axes, kMaxTensorBytes / element, &extent));
  if (!status.ok()) return status;
  // A tensor that holds one layer is treated as a tensor per layer: the layer stride would be
  // unused.
  const bool layers_within = find('L') != nullptr && shard_.layers > 1;
  if (tensors_ == 0) {
    blocks_ = find('B')->length;
    block_tokens_ = static_cast<uint32_t>(find('N')->length);
  } else if (blocks_ != find('B')->length || block_tokens_ != find('N')->length ||
             layers_within == tensor_per_layer()) {
    return refuse("the tensors of K and of V differ in axis L, B or N");
  }
  const auto stride = [&](char letter) {
    const Axis* const axis = find(letter);
    return axis == nullptr ? 0 : axis->stride * element;
  };
  Part part{.tensor = tensors_,
            .layer_stride = layers_within ? stride('L') : 0,
            .block_stride = stride('B'),
            .token_stride = stride('N'),
            .head_stride = stride('H'),
            .bytes = (holds_k ? k : v) * element};
  parts_[part_count_++] = part;
  // V has K's strides in the same tensor. It lies one step of axis 2, or K's elements, behind K.
  if (both) {
    part.offset = kv != nullptr ? stride('2') : k * element;
    part.bytes = v * element;
    parts_[part_count_++] = part;
  }
  tensor_bytes_[tensors_++] = extent * element;
  return absl::OkStatus();
}

absl::StatusOr<KvLayout> KvLayout::FromParts(const KvModel& model, const KvShard& shard,
                                             uint64_t blocks, uint32_t block_tokens,
                                             std::span<const Part> parts) {
  absl::StatusOr<KvLayout> layout = Begin(model, shard);
  if (!layout.ok()) return layout;
  const size_t wanted = model.v_size == 0 ? 1 : 2;
  if (parts.size() != wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: ", parts.size(), " parts, and the model has ", wanted));
  }
  absl::Status status = CheckRange("blocks", blocks, 1, kMaxBlocks);
  status.Update(CheckRange("tokens per block", block_tokens, 1, kMaxBlockTokens));
  if (!status.ok()) return status;
  layout->blocks_ = blocks;
  layout->block_tokens_ = block_tokens;
  layout->part_count_ = static_cast<uint32_t>(wanted);
  std::ranges::copy(parts, layout->parts_.begin());
  status = layout->CheckParts();
  if (!status.ok()) return status;
  return layout;
}

// Checks parts that came from a peer and computes the derived fields. It accepts exactly what
// FromTensors can produce.
absl::Status KvLayout::CheckParts() {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("KV cache: ", why...));
  };
  const uint64_t element = BytesOf(model_.element);
  // Each check below mirrors a property of FromTensors' results.
  const Part& k = parts_[0];
  const Part& v = parts_[1];
  const bool two = part_count_ == 2;
  if (k.bytes != model_.k_size * element || (two && v.bytes != model_.v_size * element)) {
    return refuse("parts of ", k.bytes, " and ", v.bytes, " bytes are not the model's");
  }
  // FromTensors puts the first part at the first byte of tensor 0.
  if (k.tensor != 0 || k.offset != 0) {
    return refuse("the first part does not begin the first tensor");
  }
  if (v.tensor > 1) return refuse("the second part is in tensor ", v.tensor, ", of at most 2");
  for (const Part& part : parts()) {
    for (const uint64_t distance :
         {part.offset, part.layer_stride, part.block_stride, part.token_stride, part.head_stride}) {
      if (distance % element == 0) continue;
      return refuse("a distance of ", distance, " bytes is no multiple of an element, ", element);
    }
  }
  const bool apart = v.tensor == 1;
  tensors_ = apart ? 2 : 1;
  if (apart && (v.offset != 0 || (v.layer_stride == 0) != (k.layer_stride == 0))) {
    return refuse("the tensors of K and of V are not alike");
  }
  if (shard_.layers == 1 && k.layer_stride != 0) return refuse("a stride for one layer");
  const bool alike = k.layer_stride == v.layer_stride && k.block_stride == v.block_stride &&
                     k.token_stride == v.token_stride && k.head_stride == v.head_stride;
  if (two && !apart && !alike) return refuse("K and V of one tensor have unlike strides");
  for (uint32_t tensor = 0; tensor < tensors_; ++tensor) {
    const Part& part = parts_[tensor];
    std::vector<Axis> axes = {{'B', blocks_, part.block_stride},
                              {'N', block_tokens_, part.token_stride},
                              {'H', heads_.count, part.head_stride}};
    if (part.layer_stride != 0) axes.push_back({'L', shard_.layers, part.layer_stride});
    uint64_t extent = part.bytes;
    // Either K and V of one head and token are adjacent (axis C), and together they are the
    // innermost elements, or a stride separates them (axis 2).
    if (two && !apart && v.offset == k.bytes) {
      extent += v.bytes;
    } else if (two && !apart) {
      if (k.bytes != v.bytes) return refuse("K and V of unlike sizes are not side by side");
      axes.push_back({'2', 2, v.offset});
    }
    absl::Status status =
        CheckApart("KV cache", "bytes", std::move(axes), kMaxTensorBytes, &extent);
    if (!status.ok()) return status;
    tensor_bytes_[tensor] = extent;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer
