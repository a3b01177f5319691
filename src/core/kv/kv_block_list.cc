#include "src/core/kv/kv_block_list.h"

#include <algorithm>
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

class KvListBuilder {
 public:
  KvListBuilder(const KvSide& local, const KvSide& remote, const KvRange& range, uint64_t tokens,
                Direction direction)
      : local_(local),
        remote_(remote),
        range_(range),
        tokens_(tokens),
        writes_(direction == Direction::kWrite) {}

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

  absl::StatusOr<BlockList> Build(const RegionTable& local_table, const RegionTable& remote_table,
                                  IdPool& pool) {
    absl::StatusOr<Reshard> reshard = Reshard::Between(*src().layout, *dst().layout, range_.heads);
    if (!reshard.ok()) return reshard.status();
    if (!SortIds(pool)) {
      return absl::InvalidArgumentError(
          absl::StrCat("KV cache: blocks of ", local_.layout->block_tokens(), " and of ",
                       remote_.layout->block_tokens(), " tokens meet in more than ", kMaxMeetings,
                       " ways; use sizes of which one divides the other"));
    }
    AddPairs(*reshard);
    absl::Status status = PlacePairs(local_table, remote_table);
    if (status.ok()) status = list_.SetTotals();
    if (!status.ok()) return status;
    return std::move(list_);
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

  // Sorts the ids so that pairs of blocks that meet in the same way are adjacent. False: there are
  // more than kMaxMeetings meetings.
  bool SortIds(IdPool& pool) {
    // A counting sort in two passes: the first counts the pairs of each meeting, the second places
    // the ids.
    uint32_t total = 0;
    const bool few = ForEachPiece([&](const KvPiece&, Meeting& meeting) {
      ++meeting.count;
      ++total;
      return meetings_.size() <= kMaxMeetings;
    });
    if (!few) return false;
    uint32_t first = 0;
    for (Meeting& meeting : meetings_) {
      meeting.first_id = first;
      first += std::exchange(meeting.count, 0);
    }
    uint32_t* const local_ids = list_.TakeIds(total, pool);
    uint32_t* const remote_ids = local_ids + total;
    return ForEachPiece([&](const KvPiece& piece, Meeting& meeting) {
      const uint32_t at = meeting.first_id + meeting.count++;
      local_ids[at] = local_.ids[writes_ ? piece.src_block : piece.dst_block];
      remote_ids[at] = remote_.ids[writes_ ? piece.dst_block : piece.src_block];
      return true;
    });
  }

  // Adds the pairs of the first layer, or of all layers at once if each side has them in one
  // tensor. The pairs of every further layer are the same except for their base addresses.
  void AddPairs(const Reshard& reshard) {
    const uint32_t layers = reshard.spans_layers() ? range_.layers : 1;
    std::vector<StridedCopy> copies;
    std::vector<BlockPair> pairs;
    for (const Meeting& meeting : meetings_) {
      const size_t first = copies.size();
      reshard.Copies(range_.first_layer, layers, meeting.tokens, copies);
      for (size_t i = first; i < copies.size(); ++i) {
        // Ascending on the remote side in both directions: adjacent remote runs become one request
        // of a NIC, which gathers or scatters on the local side. Copies() returns them ascending at
        // the target, which is remote for a write.
        if (!writes_) copies[i].AscendAtSource();
        pairs.push_back(PairOf(copies[i], meeting));
      }
    }
    list_.pairs_.reserve(pairs.size() * (range_.layers / layers));
    for (uint32_t layer = 0; layer < range_.layers; layer += layers) {
      for (size_t i = 0; i < pairs.size(); ++i) AddPair(pairs[i], copies[i], layer);
    }
  }

  // Everything but the base addresses, which AddPair sets for each layer.
  BlockPair PairOf(const StridedCopy& copy, const Meeting& meeting) {
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
      pair.pieces = static_cast<uint32_t>(list_.block_pieces_.size());
      list_.block_pieces_.push_back(PiecesOf(copy));
    }
    return pair;
  }

  // `layer` counts from the first wanted layer.
  void AddPair(BlockPair pair, const StridedCopy& copy, uint32_t layer) {
    const uint32_t from = TensorAt(src(), layer, copy.src_tensor);
    const uint32_t to = TensorAt(dst(), layer, copy.dst_tensor);
    (writes_ ? pair.local : pair.remote).base =
        src().tensors[from] + copy.src_offset + layer * copy.src_layer_stride;
    (writes_ ? pair.remote : pair.local).base =
        dst().tensors[to] + copy.dst_offset + layer * copy.dst_layer_stride;
    // Holds the tensor's index until Place replaces it with the region that contains the tensor.
    pair.local_region = writes_ ? from : to;
    pair.remote_region = writes_ ? to : from;
    list_.pairs_.push_back(pair);
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

  uint32_t TensorAt(const KvSide& side, uint32_t layer, uint32_t tensor) const {
    if (!side.layout->tensor_per_layer()) return tensor;
    const uint32_t of_shard = range_.first_layer - side.layout->shard().first_layer + layer;
    return of_shard * side.layout->tensors() + tensor;
  }

  absl::Status PlacePairs(const RegionTable& local_table, const RegionTable& remote_table) {
    absl::Status status = Place("local", local_, Access::kNone, local_table,
                                &BlockPair::local_region, list_.local_regions_);
    status.Update(Place("remote", remote_, writes_ ? Access::kRemoteWrite : Access::kRemoteRead,
                        remote_table, &BlockPair::remote_region, list_.remote_regions_));
    return status;
  }

  // Replaces the tensor index in each pair by the index of the region that contains the whole
  // tensor.
  absl::Status Place(std::string_view name, const KvSide& side, Access wanted,
                     const RegionTable& table, uint32_t BlockPair::*region,
                     RegionIndices& touched) {
    // A tensor is looked up once, not once per pair.
    std::vector<uint32_t> found(side.tensors.size(), kNoRegion);
    RegionSet set(table);
    for (BlockPair& pair : list_.pairs_) {
      const uint32_t tensor = pair.*region;
      if (found[tensor] == kNoRegion) {
        auto at = table.Find(side.tensors[tensor],
                             side.layout->tensor_bytes(tensor % side.layout->tensors()), wanted);
        if (!at.ok()) {
          return Annotate(at.status(), absl::StrCat(ToAbsl(name), " KV cache, tensor ", tensor));
        }
        set.Add(found[tensor] = *at);
      }
      pair.*region = found[tensor];
    }
    touched = set.Ascending();
    return absl::OkStatus();
  }

  const KvSide& local_;
  const KvSide& remote_;
  const KvRange& range_;
  const uint64_t tokens_;
  const bool writes_;
  std::vector<Meeting> meetings_;
  BlockList list_;
};

absl::StatusOr<BlockList> ListKvBlocks(const KvSide& local, const KvSide& remote,
                                       const KvRange& range, uint64_t tokens, Direction direction,
                                       const RegionTable& local_table,
                                       const RegionTable& remote_table, IdPool& pool) {
  KvListBuilder builder(local, remote, range, tokens, direction);
  if (absl::Status status = builder.Check(); !status.ok()) return status;
  return builder.Build(local_table, remote_table, pool);
}

}  // namespace kvxfer
