#include "src/cuda/copy_units.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace kvxfer::cuda {
namespace {

// What a warp moves in one step. A smaller unit leaves lanes or loads of the warp unused.
constexpr uint64_t kStep = uint64_t{kWarp} * 16 * kInFlight;
// A larger unit would no longer make the list cheaper, and would make the ends of batches uneven.
constexpr uint64_t kMostUnitBytes = 4 * kStep;
// A piece of at least half a step is a unit of its own: as a row it would be copied no faster.
constexpr uint64_t kLongRow = kStep / 2;

constexpr uint32_t kWarpsPerProcessor = 6;
constexpr uint32_t kWarpsPerBlock = kCopyThreads / kWarp;
constexpr uint32_t kPeerBlocks = 48;
constexpr uint32_t kHostBlocks = 16;
// 128 bytes of the list: PCIe transfers them as cheaply as less.
constexpr uint32_t kPerGroup = 4;
static_assert(kPerGroup <= kMaxPerGroup);

uint64_t RoundUp(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

bool Fits(int64_t stride) {
  return stride >= std::numeric_limits<int32_t>::min() &&
         stride <= std::numeric_limits<int32_t>::max();
}

// Joins adjacent pieces and passes each result to `take`.
template <typename Take>
void ForEachJoined(std::span<const Piece> pieces, Take take) {
  for (size_t i = 0; i < pieces.size();) {
    const Piece& first = pieces[i];
    uint64_t bytes = first.bytes;
    while (++i < pieces.size() && pieces[i].to == first.to + bytes &&
           pieces[i].from == first.from + bytes) {
      bytes += pieces[i].bytes;
    }
    if (bytes > 0) take(Piece{.to = first.to, .from = first.from, .bytes = bytes});
  }
}

// Accepts joined pieces and writes the units.
class UnitWriter {
 public:
  UnitWriter(uint64_t unit_bytes, CopyUnit* out)
      : unit_bytes_(unit_bytes), first_(out), next_(out) {}

  void Take(const Piece& piece) {
    if (piece.bytes >= kLongRow) {
      EndRows();
      Cut(piece);
    } else if (!AddRow(piece)) {
      EndRows();
      rows_ = {.to = piece.to,
               .from = piece.from,
               .bytes = static_cast<uint32_t>(piece.bytes),
               .rows = 1};
      max_rows_ = static_cast<uint32_t>(unit_bytes_ / piece.bytes);
    }
  }
  size_t Finish() {
    EndRows();
    return static_cast<size_t>(next_ - first_);
  }

 private:
  void Cut(const Piece& piece) {
    for (uint64_t done = 0; done < piece.bytes; done += unit_bytes_) {
      // Written field by field: building the unit elsewhere and copying it takes half as long
      // again.
      next_->to = piece.to + done;
      next_->from = piece.from + done;
      next_->bytes = static_cast<uint32_t>(std::min(unit_bytes_, piece.bytes - done));
      next_->rows = 1;
      next_->to_stride = 0;
      next_->from_stride = 0;
      ++next_;
    }
  }
  // False: `piece` is not the next row of the current unit.
  bool AddRow(const Piece& piece) {
    if (piece.bytes != rows_.bytes || rows_.rows == max_rows_ || rows_.rows == 0) return false;
    if (rows_.rows == 1) {
      const auto to_stride = static_cast<int64_t>(piece.to - rows_.to);
      const auto from_stride = static_cast<int64_t>(piece.from - rows_.from);
      if (!Fits(to_stride) || !Fits(from_stride)) return false;
      rows_.to_stride = static_cast<int32_t>(to_stride);
      rows_.from_stride = static_cast<int32_t>(from_stride);
    } else if (piece.to != RowAt(rows_.to, rows_.to_stride, rows_.rows) ||
               piece.from != RowAt(rows_.from, rows_.from_stride, rows_.rows)) {
      return false;
    }
    ++rows_.rows;
    return true;
  }
  void EndRows() {
    if (rows_.rows > 0) *next_++ = rows_;
    rows_.rows = 0;
  }

  const uint64_t unit_bytes_;
  CopyUnit* const first_;
  CopyUnit* next_;
  CopyUnit rows_{.rows = 0};  // rows == 0: no unit has begun
  uint32_t max_rows_ = 0;
};

}  // namespace

uint32_t CopyShape::PerGroup(size_t units) const {
  // Smaller groups for few units, so that every warp gets some.
  const size_t each = (units + warps - 1) / warps;
  return std::min(kPerGroup, static_cast<uint32_t>(std::bit_ceil(each)));
}

uint32_t CopyShape::Blocks(size_t units, uint32_t per_group) const {
  const size_t a_block = size_t{per_group} * kWarpsPerBlock;
  return static_cast<uint32_t>(std::min<size_t>(max_blocks, (units + a_block - 1) / a_block));
}

CopyShape ShapeOf(uint64_t bytes, Reach reach, int multiprocessors, uint32_t most_sms) {
  const auto processors = static_cast<uint32_t>(std::max(1, multiprocessors));
  CopyShape shape;
  // With only its own memory, the GPU gets a block for each group and balances the load by itself.
  shape.max_blocks = reach == Reach::kHost   ? kHostBlocks
                     : reach == Reach::kPeer ? kPeerBlocks
                                             : std::numeric_limits<int32_t>::max();
  if (most_sms > 0) shape.max_blocks = std::min(shape.max_blocks, most_sms);
  shape.warps =
      std::min(kWarpsPerProcessor * processors,
               static_cast<uint32_t>(std::min<uint64_t>(uint64_t{shape.max_blocks} * kWarpsPerBlock,
                                                        std::numeric_limits<uint32_t>::max())));
  // About two units per warp, in whole steps.
  shape.unit_bytes =
      std::clamp(RoundUp(bytes / (uint64_t{2} * shape.warps), kStep), kStep, kMostUnitBytes);
  // The list is bounded too (kMostUnits): units grow for very large batches.
  shape.unit_bytes =
      std::max(shape.unit_bytes, RoundUp(bytes / (kMostUnits - Copier::kMaxPieces), kStep));
  return shape;
}

size_t MostUnits(size_t pieces, uint64_t bytes, uint64_t unit_bytes) {
  return pieces + static_cast<size_t>(bytes / unit_bytes);
}

size_t MakeUnits(std::span<const Piece> pieces, uint64_t unit_bytes, CopyUnit* out) {
  UnitWriter writer(unit_bytes, out);
  ForEachJoined(pieces, [&](const Piece& piece) { writer.Take(piece); });
  return writer.Finish();
}

CopyPart MakePart(const PagedCopy& copy, uint64_t unit_bytes) {
  CopyPart part{.to = copy.to.base,
                .from = copy.from.base,
                .to_stride = copy.to.stride,
                .from_stride = copy.from.stride,
                .piece_units = 1,
                .piece_bytes = static_cast<uint32_t>(copy.bytes),
                .unit_bytes = static_cast<uint32_t>(unit_bytes),
                .unit_rows = 1,
                .to_last = copy.to.last,
                .from_last = copy.from.last};
  uint64_t rows = 1;
  uint64_t in_row = 1;
  bool strided = false;
  if (copy.pieces != nullptr) {
    const BlockPieces::Dim& inner = copy.pieces->used_dims().back();
    part.dim_count = static_cast<uint16_t>(copy.pieces->dim_count);
    in_row = inner.count;
    rows = copy.pieces->count() / in_row;
    strided = Fits(static_cast<int64_t>(inner.local_stride)) &&
              Fits(static_cast<int64_t>(inner.remote_stride));
  }
  if (copy.bytes > unit_bytes) {
    part.piece_units = static_cast<uint32_t>((copy.bytes + unit_bytes - 1) / unit_bytes);
    part.row_units = static_cast<uint32_t>(in_row) * part.piece_units;
  } else {
    if (strided && copy.bytes < kLongRow) {
      part.unit_rows = static_cast<uint32_t>(std::min(in_row, unit_bytes / copy.bytes));
    }
    part.row_units = static_cast<uint32_t>((in_row + part.unit_rows - 1) / part.unit_rows);
  }
  part.block_units = static_cast<uint32_t>(rows) * part.row_units;
  part.units = copy.count * part.block_units;
  return part;
}

PieceGrid MakeGrid(const BlockPieces& pieces, bool to_local) {
  static_assert(kMaxPieceDims == BlockPieces::kMaxDims);
  PieceGrid grid;
  PieceDim* out = grid.dims;
  for (const BlockPieces::Dim& dim : pieces.used_dims()) {
    *out++ = {.to_stride = to_local ? dim.local_stride : dim.remote_stride,
              .from_stride = to_local ? dim.remote_stride : dim.local_stride,
              .count = dim.count};
  }
  return grid;
}

void AddPieces(const PagedCopy& copy, std::vector<Piece>& out) {
  const PieceGrid grid =
      copy.pieces == nullptr ? PieceGrid() : MakeGrid(*copy.pieces, copy.to_local);
  const uint64_t pieces = copy.pieces == nullptr ? 1 : copy.pieces->count();
  for (uint32_t i = 0; i < copy.count; ++i) {
    for (uint64_t at = 0; at < pieces; ++at) {
      Piece piece{.to = copy.to.base + copy.to.ids[i] * copy.to.stride,
                  .from = copy.from.base + copy.from.ids[i] * copy.from.stride,
                  .bytes = copy.bytes};
      uint64_t rest = at;
      for (size_t dim = copy.pieces == nullptr ? 0 : copy.pieces->dim_count; dim-- > 0;) {
        const uint64_t digit = rest % grid.dims[dim].count;
        rest /= grid.dims[dim].count;
        piece.to += digit * grid.dims[dim].to_stride;
        piece.from += digit * grid.dims[dim].from_stride;
      }
      out.push_back(piece);
    }
  }
}

void JoinPieces(std::span<const Piece> pieces, std::vector<Piece>& out) {
  out.clear();
  ForEachJoined(pieces, [&](const Piece& piece) { out.push_back(piece); });
}

}  // namespace kvxfer::cuda
