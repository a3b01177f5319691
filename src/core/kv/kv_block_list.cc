#include "src/core/kv/kv_block_list.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "src/core/base/strings.h"
#include "src/core/kv/kv_tensors.h"
#include "src/core/kv/reshard.h"
#include "src/core/plan/block_overlap.h"

namespace kvxfer {
namespace {

// The blocks in a side's id list that hold the wanted tokens: the index of the first one, and how
// many.
struct Used {
  uint64_t first = 0;
  uint64_t count = 0;
};

Used UsedOf(const KvSide& side, uint64_t tokens) {
  const uint32_t block_tokens = side.layout->block_tokens();
  const uint64_t first = side.first_token / block_tokens;
  return {first, (side.first_token + tokens - 1) / block_tokens - first + 1};
}

absl::Status CheckSide(std::string_view name, const KvSide& side, const KvRange& range,
                       uint64_t tokens) {
  const KvLayout& layout = *side.layout;
  absl::Status status = CheckKvTensorCount(name, layout, side.tensors.size());
  if (!status.ok()) return status;
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(name), " KV cache: ", why...));
  };
  if (const auto misfit = MisfitOf(range, RangeOf(layout))) {
    return refuse(misfit->count, " ", misfit->axis, " from ", misfit->first,
                  " on are asked for, and it has ", misfit->has_count, " from ", misfit->has_first,
                  " on");
  }
  // The pieces of a list are at most as many as the ids of both sides; this bound lets a uint32_t
  // count them.
  if (side.ids.size() > UINT32_MAX / 2) return refuse("more than 2^31 - 1 ids");
  const uint64_t space = side.ids.size() * layout.block_tokens();
  if (side.first_token > space || tokens > space - side.first_token) {
    return refuse(tokens, " tokens from ", side.first_token, " on are asked for, and ",
                  side.ids.size(), " blocks of ", layout.block_tokens(), " tokens are given");
  }
  const auto beyond =
      // An id beyond the layout's blocks would address memory outside the tensors.
      std::ranges::find_if(side.ids, [&](uint32_t id) { return uint64_t{id} >= layout.blocks(); });
  if (beyond != side.ids.end()) {
    return refuse("ids[", beyond - side.ids.begin(), "] is ", *beyond, ", and it has blocks 0 to ",
                  layout.blocks() - 1);
  }
  return absl::OkStatus();
}

}  // namespace

// The steps of making lists, in the order in which they are called. Build may then be called any
// number of times.
class KvListBuilder {
 public:
  // What the sides point to is used until the last call, except the ids, which are copied at once:
  // what the caller does with its own meanwhile changes nothing.
  KvListBuilder(const KvSide& local, const KvSide& remote, const KvRange& range, uint64_t tokens,
                Direction direction)
      : local_(local),
        remote_(remote),
        range_(range),
        tokens_(tokens),
        writes_(direction == Direction::kWrite) {
    ids_.reserve(local.ids.size() + remote.ids.size());
    ids_.insert(ids_.end(), local.ids.begin(), local.ids.end());
    ids_.insert(ids_.end(), remote.ids.begin(), remote.ids.end());
    local_.ids = std::span(ids_).first(local.ids.size());
    remote_.ids = std::span(ids_).subspan(local.ids.size());
  }

  absl::Status Check() const {
    if (tokens_ == 0) return absl::InvalidArgumentError("KV cache: no tokens are asked for");
    absl::Status status =
        CheckSameModel(local_.layout->model(), remote_.layout->model(), "the remote side");
    status.Update(CheckSide("local", local_, range_, tokens_));
    status.Update(CheckSide("remote", remote_, range_, tokens_));
    if (!status.ok()) return status;
    // Only the target's used blocks must be distinct: a block of the source may be read several
    // times.
    const Used used = UsedOf(dst(), tokens_);
    const auto ids = dst().ids.subspan(used.first, used.count);
    return CheckIdsDistinct(writes_ ? "remote" : "local", ids, *std::ranges::max_element(ids),
                            used.first);
  }

  // Finds the ways in which blocks meet, and counts the ids that a list has on each side.
  absl::Status Count() {
    absl::StatusOr<Reshard> reshard = Reshard::Between(*src().layout, *dst().layout, range_.heads);
    if (!reshard.ok()) return reshard.status();
    reshard_ = *std::move(reshard);
    if (CountMeetings()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("KV cache: blocks of ", local_.layout->block_tokens(), " and of ",
                     remote_.layout->block_tokens(), " tokens meet in more than ", kMaxMeetings,
                     " ways; use sizes of which one divides the other"));
  }

  // A list without blocks that has memory of its own for the ids, and puts them there.
  BlockList TakeIds(IdPool& pool) {
    BlockList list;
    SortIds(list.TakeIds(id_count_, pool));
    return list;
  }
  // Puts the ids where all lists share them.
  void KeepIds() {
    std::shared_ptr<uint32_t[]> ids(new uint32_t[2 * size_t{id_count_}]);
    SortIds(ids.get());
    shared_ids_ = std::move(ids);
  }
  BlockList ShareIds() const {
    BlockList list;
    list.ShareIds(shared_ids_, id_count_);
    return list;
  }

  // Finds the region of each tensor that has layers of the range.
  absl::Status FindRegions(const RegionTable& local_table, const RegionTable& remote_table) {
    absl::Status status = Find("local", local_, Access::kNone, local_table, local_regions_);
    status.Update(Find("remote", remote_, writes_ ? Access::kRemoteWrite : Access::kRemoteRead,
                       remote_table, remote_regions_));
    return status;
  }

  // Adds the pairs of these layers, which lie within the range, to a list that has the ids.
  absl::StatusOr<BlockList> Build(uint32_t first_layer, uint32_t layers, BlockList list) const {
    AddPairs(first_layer, layers, list);
    RegionSet local(local_regions_.in_table);
    RegionSet remote(remote_regions_.in_table);
    for (const BlockPair& pair : list.pairs_) {
      local.Add(pair.local_region);
      remote.Add(pair.remote_region);
    }
    list.local_regions_ = local.Ascending();
    list.remote_regions_ = remote.Ascending();
    if (absl::Status status = list.SetTotals(); !status.ok()) return status;
    return list;
  }

 private:
  // One way in which a source block and a target block share tokens. The copies of two blocks
  // depend on nothing else. If the block sizes differ, a few meetings repeat periodically.
  struct Meeting {
    KvPiece tokens{};       // those of the first pair of blocks that meets in this way
    uint32_t count = 0;     // pairs of blocks that meet in this way
    uint32_t first_id = 0;  // where their ids begin in the sorted id lists

    bool IsOf(const KvPiece& piece) const {
      return tokens.src_token == piece.src_token && tokens.dst_token == piece.dst_token &&
             tokens.tokens == piece.tokens;
    }
  };

  static constexpr size_t kMaxMeetings = 4096;

  // Returns the index of the meeting that `piece` belongs to; `last` is that of the piece before.
  // The meetings repeat in the same order each time both sides begin a block together. The
  // candidates are therefore: the next one; the first, where the period starts again; the second,
  // if the first token lies inside a block on both sides, because that meeting does not recur; and
  // the last, which is the shorter final piece.
  size_t FindMeeting(const KvPiece& piece, size_t last) {
    for (const size_t i : {last + 1, size_t{0}, size_t{1}, meetings_.size() - 1}) {
      if (i < meetings_.size() && meetings_[i].IsOf(piece)) return i;
    }
    meetings_.push_back({.tokens = piece});
    return meetings_.size() - 1;
  }

  const KvSide& src() const { return writes_ ? local_ : remote_; }
  const KvSide& dst() const { return writes_ ? remote_ : local_; }

  // Stops when `visit` returns false.
  template <typename Visit>
  bool ForEachPiece(Visit visit) {
    KvPieces pieces(src().layout->block_tokens(), src().first_token, dst().layout->block_tokens(),
                    dst().first_token, tokens_);
    for (size_t at = 0; !pieces.done();) {
      const KvPiece piece = pieces.Next();
      at = FindMeeting(piece, at);
      if (!visit(piece, meetings_[at])) return false;
    }
    return true;
  }

  // A counting sort in two passes: CountMeetings counts the pairs of blocks of each meeting,
  // SortIds places their ids, so that pairs that meet in the same way are adjacent.

  // False: there are more than kMaxMeetings meetings.
  bool CountMeetings() {
    const bool few = ForEachPiece([&](const KvPiece&, Meeting& meeting) {
      ++meeting.count;
      ++id_count_;
      return meetings_.size() <= kMaxMeetings;
    });
    uint32_t first = 0;
    for (Meeting& meeting : meetings_) {
      meeting.first_id = first;
      first += meeting.count;
    }
    return few;
  }

  // `ids`: space for the local ids, followed by the remote ids.
  void SortIds(uint32_t* ids) {
    uint32_t* const remote_ids = ids + id_count_;
    for (Meeting& meeting : meetings_) meeting.count = 0;
    ForEachPiece([&](const KvPiece& piece, Meeting& meeting) {
      const uint32_t at = meeting.first_id + meeting.count++;
      ids[at] = local_.ids[writes_ ? piece.src_block : piece.dst_block];
      remote_ids[at] = remote_.ids[writes_ ? piece.dst_block : piece.src_block];
      return true;
    });
    local_.ids = remote_.ids = {};
    ids_ = {};
  }

  // Adds the pairs of the first layer, or of all layers at once if each side has them in one
  // tensor. The pairs of every further layer are the same except for their base addresses.
  void AddPairs(uint32_t first_layer, uint32_t layers, BlockList& list) const {
    const uint32_t at_once = reshard_->spans_layers() ? layers : 1;
    std::vector<StridedCopy> copies;
    absl::InlinedVector<BlockPair, 2> pairs;
    for (const Meeting& meeting : meetings_) {
      const size_t first = copies.size();
      reshard_->Copies(first_layer, at_once, meeting.tokens, copies);
      for (size_t i = first; i < copies.size(); ++i) {
        // Ascending on the remote side in both directions: adjacent remote runs become one request
        // of a NIC, which gathers or scatters on the local side. Copies() returns them ascending at
        // the target, which is remote for a write.
        if (!writes_) copies[i].AscendAtSource();
        pairs.push_back(PairOf(copies[i], meeting, list));
      }
    }
    list.pairs_.reserve(pairs.size() * (layers / at_once));
    for (uint32_t layer = 0; layer < layers; layer += at_once) {
      for (size_t i = 0; i < pairs.size(); ++i) {
        list.pairs_.push_back(pairs[i]);
        Place(list.pairs_.back(), copies[i], first_layer, layer);
      }
    }
  }

  // Everything but what Place sets for each layer.
  BlockPair PairOf(const StridedCopy& copy, const Meeting& meeting, BlockList& list) const {
    const uint64_t bytes = copy.bytes * copy.runs();
    const PagedRegion from{
        .block_bytes = bytes, .stride = copy.src_block_stride, .count = src().layout->blocks()};
    const PagedRegion to{
        .block_bytes = bytes, .stride = copy.dst_block_stride, .count = dst().layout->blocks()};
    BlockPair pair{.local = writes_ ? from : to,
                   .remote = writes_ ? to : from,
                   .first_id = meeting.first_id,
                   .id_count = meeting.count};
    if (!copy.dims.empty()) {
      pair.pieces = static_cast<uint32_t>(list.block_pieces_.size());
      list.block_pieces_.push_back(PiecesOf(copy));
    }
    return pair;
  }

  // The base addresses and the regions. `layer` counts from `first_layer` of the model.
  void Place(BlockPair& pair, const StridedCopy& copy, uint32_t first_layer, uint32_t layer) const {
    const uint32_t from = TensorAt(src(), first_layer + layer, copy.src_tensor);
    const uint32_t to = TensorAt(dst(), first_layer + layer, copy.dst_tensor);
    (writes_ ? pair.local : pair.remote).base =
        src().tensors[from] + copy.src_offset + layer * copy.src_layer_stride;
    (writes_ ? pair.remote : pair.local).base =
        dst().tensors[to] + copy.dst_offset + layer * copy.dst_layer_stride;
    pair.local_region = local_regions_.of_tensor[writes_ ? from : to];
    pair.remote_region = remote_regions_.of_tensor[writes_ ? to : from];
  }

  BlockPieces PiecesOf(const StridedCopy& copy) const {
    BlockPieces pieces{.bytes = copy.bytes};
    for (const StridedCopy::Dim& dim : copy.dims) {
      pieces.dims[pieces.dim_count++] = {
          .count = dim.count,
          .local_stride = writes_ ? dim.src_stride : dim.dst_stride,
          .remote_stride = writes_ ? dim.dst_stride : dim.src_stride};
    }
    return pieces;
  }

  // `layer` counts from the first layer of the model.
  static uint32_t TensorAt(const KvSide& side, uint32_t layer, uint32_t tensor) {
    if (!side.layout->tensor_per_layer()) return tensor;
    return (layer - side.layout->shard().first_layer) * side.layout->tensors() + tensor;
  }

  // The regions of one side, as indices in its table.
  struct Regions {
    std::vector<uint32_t> of_tensor{};  // kNoRegion: it has no layer of the range
    size_t in_table = 0;                // how many the table has
  };

  // Finds the regions that contain whole tensors.
  absl::Status Find(std::string_view name, const KvSide& side, Access wanted,
                    const RegionTable& table, Regions& regions) const {
    const KvLayout& layout = *side.layout;
    regions = {.of_tensor = std::vector<uint32_t>(side.tensors.size(), kNoRegion),
               .in_table = table.regions().size()};
    const uint32_t first = TensorAt(side, range_.first_layer, 0);
    const uint32_t end = first + (layout.tensor_per_layer() ? range_.layers : 1) * layout.tensors();
    for (uint32_t tensor = first; tensor < end; ++tensor) {
      const auto at =
          table.Find(side.tensors[tensor], layout.tensor_bytes(tensor % layout.tensors()), wanted);
      if (!at.ok()) {
        return Annotate(at.status(), absl::StrCat(ToAbsl(name), " KV cache, tensor ", tensor));
      }
      regions.of_tensor[tensor] = *at;
    }
    return absl::OkStatus();
  }

  std::vector<uint32_t> ids_;  // of the local side, then of the remote one
  KvSide local_;
  KvSide remote_;
  const KvRange range_;
  const uint64_t tokens_;
  const bool writes_;
  std::optional<Reshard> reshard_;
  std::vector<Meeting> meetings_;
  uint32_t id_count_ = 0;  // per side
  BlockList::SharedIds shared_ids_;
  Regions local_regions_;
  Regions remote_regions_;
};

absl::StatusOr<BlockList> ListKvBlocks(const KvSide& local, const KvSide& remote,
                                       const KvRange& range, uint64_t tokens, Direction direction,
                                       const RegionTable& local_table,
                                       const RegionTable& remote_table, IdPool& pool) {
  KvListBuilder builder(local, remote, range, tokens, direction);
  if (absl::Status status = builder.Check(); !status.ok()) return status;
  if (absl::Status status = builder.Count(); !status.ok()) return status;
  BlockList list = builder.TakeIds(pool);
  absl::Status status = builder.FindRegions(local_table, remote_table);
  if (!status.ok()) return status;
  return builder.Build(range.first_layer, range.layers, std::move(list));
}

KvLayerLists::KvLayerLists(std::unique_ptr<const KvListBuilder> builder)
    : builder_(std::move(builder)) {}
KvLayerLists::~KvLayerLists() = default;
KvLayerLists::KvLayerLists(KvLayerLists&&) noexcept = default;
KvLayerLists& KvLayerLists::operator=(KvLayerLists&&) noexcept = default;

absl::StatusOr<KvLayerLists> KvLayerLists::Make(const KvSide& local, const KvSide& remote,
                                                const KvRange& range, uint64_t tokens,
                                                Direction direction, const RegionTable& local_table,
                                                const RegionTable& remote_table) {
  auto builder = std::make_unique<KvListBuilder>(local, remote, range, tokens, direction);
  if (absl::Status status = builder->Check(); !status.ok()) return status;
  if (absl::Status status = builder->Count(); !status.ok()) return status;
  builder->KeepIds();
  absl::Status status = builder->FindRegions(local_table, remote_table);
  if (!status.ok()) return status;
  return KvLayerLists(std::move(builder));
}

absl::StatusOr<BlockList> KvLayerLists::List(uint32_t first_layer, uint32_t layers) const {
  return builder_->Build(first_layer, layers, builder_->ShareIds());
}

}  // namespace kvxfer
