// What slices and walks of a block list must give, by plain loops that share nothing with the code:
// byte after byte of every block.
#ifndef KVXFER_TESTS_UNIT_CORE_PLAN_RUN_ORACLE_H_
#define KVXFER_TESTS_UNIT_CORE_PLAN_RUN_ORACLE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "kvxfer/backend.h"
#include "src/core/plan/block_list.h"
#include "src/core/plan/plan.h"

namespace kvxfer {

// A run with its regions by index, as the tables have them.
struct PlannedRun {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  uint32_t local_region = 0;
  uint32_t remote_region = 0;
  bool operator==(const PlannedRun&) const = default;
};

// What a backend would call the regions: places in arrays, so that they can be told by index.
class RegionNames {
 public:
  static const RegionNames& Get() {
    static const RegionNames names;
    return names;
  }
  std::span<const Registration* const> registrations() const { return local_; }
  std::span<const RemoteKey* const> keys() const { return remote_; }
  PlannedRun Planned(const Run& run) const {
    return {.local = run.local,
            .remote = run.remote,
            .bytes = run.bytes,
            .local_region = Index(local_, run.registration),
            .remote_region = Index(remote_, run.key)};
  }

 private:
  static constexpr size_t kRegions = 8;
  RegionNames() {
    for (size_t i = 0; i < kRegions; ++i) {
      local_[i] = &registrations_[i];
      remote_[i] = &keys_[i];
    }
  }
  template <typename Array, typename Region>
  static uint32_t Index(const Array& array, const Region* region) {
    const auto at = std::ranges::find(array, region);
    EXPECT_NE(at, array.end()) << "a run of no region";
    return static_cast<uint32_t>(at - array.begin());
  }

  std::array<Registration, kRegions> registrations_;
  std::array<RemoteKey, kRegions> keys_;
  std::array<const Registration*, kRegions> local_;
  std::array<const RemoteKey*, kRegions> remote_;
};

inline BlockView ViewOf(const BlockList& list) {
  return list.View(RegionNames::Get().registrations(), RegionNames::Get().keys());
}

class RunOracle {
 public:
  explicit RunOracle(const BlockView& view) {
    for (const Block& block : view.descriptors) {
      Add({block.local, block.remote, block.bytes, block.local_region, block.remote_region});
    }
    for (const BlockPair& pair : view.pairs) {
      for (uint32_t i = pair.first_id; i < pair.first_id + pair.id_count; ++i) {
        const PlannedRun block{pair.local.base + view.local_ids[i] * pair.local.stride,
                               pair.remote.base + view.remote_ids[i] * pair.remote.stride,
                               pair.local.block_bytes, pair.local_region, pair.remote_region};
        if (pair.pieces == BlockPair::kOnePiece) {
          Add(block);
        } else {
          AddPieces(block, view.block_pieces[pair.pieces], 0);
        }
      }
    }
  }

  size_t bytes() const { return bytes_.size(); }
  // How many pieces `bytes` bytes from byte `first` on have.
  size_t Pieces(size_t first, size_t bytes) const {
    return bytes == 0 ? 0 : bytes_[first + bytes - 1].piece - bytes_[first].piece + 1;
  }
  // Those bytes as the fewest runs.
  std::vector<PlannedRun> Runs(size_t first, size_t bytes) const {
    std::vector<PlannedRun> runs;
    for (size_t i = first; i < first + bytes; ++i) {
      const PlannedRun& byte = bytes_[i].at;
      if (!runs.empty() && Continues(runs.back(), byte)) {
        ++runs.back().bytes;
      } else {
        runs.push_back(byte);
      }
    }
    return runs;
  }

 private:
  struct Byte {
    PlannedRun at;  // of one byte
    size_t piece = 0;
  };

  static bool Continues(const PlannedRun& a, const PlannedRun& b) {
    return a.local + a.bytes == b.local && a.remote + a.bytes == b.remote &&
           a.local_region == b.local_region && a.remote_region == b.remote_region;
  }
  void Add(const PlannedRun& piece) {
    for (uint64_t b = 0; b < piece.bytes; ++b) {
      bytes_.push_back(
          {.at = {piece.local + b, piece.remote + b, 1, piece.local_region, piece.remote_region},
           .piece = pieces_});
    }
    if (piece.bytes > 0) ++pieces_;
  }
  // The pieces of a block, from dimension `dim` on.
  void AddPieces(const PlannedRun& at, const BlockPieces& pieces, size_t dim) {
    if (at.bytes == 0) return;
    if (dim == pieces.dim_count) {
      PlannedRun run = at;
      run.bytes = pieces.bytes;
      return Add(run);
    }
    for (uint64_t i = 0; i < pieces.dims[dim].count; ++i) {
      PlannedRun next = at;
      next.local += i * pieces.dims[dim].local_stride;
      next.remote += i * pieces.dims[dim].remote_stride;
      AddPieces(next, pieces, dim + 1);
    }
  }

  std::vector<Byte> bytes_;
  size_t pieces_ = 0;
};

// A block list of up to four pairs, some with blocks of several pieces, some with no ids or no
// bytes. Strides are such that pieces are often adjacent on one side or both, within a block and
// from one block or pair to the next. No destination is checked: nothing is copied.
class RandomRuns {
 public:
  explicit RandomRuns(std::mt19937_64& random) : random_(random) {
    for (uint32_t i = 0; i < kIds; ++i) {
      for (std::vector<uint32_t>* ids : {&local_ids_, &remote_ids_}) {
        const bool follows = !ids->empty() && Below(4) != 0;
        ids->push_back(follows ? ids->back() + 1 : static_cast<uint32_t>(Below(kIds)));
      }
    }
    for (uint64_t pairs = 1 + Below(4); pairs > 0; --pairs) AddPair();
    view_ = {.pairs = pairs_,
             .block_pieces = block_pieces_,
             .local_ids = local_ids_.data(),
             .remote_ids = remote_ids_.data(),
             .registrations = RegionNames::Get().registrations(),
             .keys = RegionNames::Get().keys()};
  }
  RandomRuns(const RandomRuns&) = delete;
  RandomRuns& operator=(const RandomRuns&) = delete;

  const BlockView& view() const { return view_; }

 private:
  static constexpr uint32_t kIds = 8;

  uint64_t Below(uint64_t n) { return random_() % n; }

  void AddPair() {
    BlockPair pair{};
    pair.local_region = static_cast<uint32_t>(Below(2));
    pair.remote_region = static_cast<uint32_t>(Below(2));
    pair.first_id = static_cast<uint32_t>(Below(kIds));
    pair.id_count = static_cast<uint32_t>(Below(kIds - pair.first_id + 1));
    uint64_t bytes = Below(5);
    if (bytes > 0 && Below(3) > 0) {
      pair.pieces = static_cast<uint32_t>(block_pieces_.size());
      bytes = AddPieces(bytes);
    }
    pair.local = {.base = base_, .block_bytes = bytes, .stride = bytes + Gap(), .count = 2 * kIds};
    pair.remote = pair.local;
    if (Below(2) == 0) pair.remote.stride = bytes + Gap();
    // The next pair may go on where the blocks of this one end.
    base_ += pair.id_count * bytes + Gap();
    pairs_.push_back(pair);
  }

  // Returns the bytes of a block.
  uint64_t AddPieces(uint64_t piece_bytes) {
    BlockPieces pieces{.bytes = piece_bytes};
    uint64_t bytes = piece_bytes;
    pieces.dim_count = static_cast<uint32_t>(1 + Below(BlockPieces::kMaxDims));
    // From the innermost one outwards.
    for (size_t i = pieces.dim_count; i-- > 0;) {
      const BlockPieces::Dim dim{
          .count = 1 + Below(3), .local_stride = bytes + Gap(), .remote_stride = bytes + Gap()};
      pieces.dims[i] = dim;
      bytes *= dim.count;
    }
    block_pieces_.push_back(pieces);
    return bytes;
  }

  uint64_t Gap() { return Below(3) > 0 ? 0 : Below(4); }

  std::mt19937_64& random_;
  uint64_t base_ = 1000;
  std::vector<BlockPair> pairs_;
  std::vector<BlockPieces> block_pieces_;
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
  BlockView view_;
};

// Walks `range` run by run. What the walk says beside the runs is checked: how much is left, and
// where the next run begins.
inline std::vector<PlannedRun> RunsOf(const BlockRange& range) {
  const RegionNames& names = RegionNames::Get();
  std::vector<PlannedRun> runs;
  uint64_t left = range.bytes;
  Run ahead;
  for (RunWalk walk(range); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    EXPECT_EQ(walk.left(), left);
    if (!runs.empty()) {
      EXPECT_EQ(ahead.local, run.local);
      EXPECT_EQ(ahead.remote, run.remote);
      EXPECT_EQ(ahead.registration, run.registration);
      EXPECT_EQ(ahead.key, run.key);
      EXPECT_GT(ahead.bytes, 0u);
      EXPECT_LE(ahead.bytes, run.bytes);
    }
    if (run.bytes > left) {
      ADD_FAILURE() << "a walk beyond its range";
      break;
    }
    left -= run.bytes;
    ahead = walk.Ahead();
    runs.push_back(names.Planned(run));
  }
  EXPECT_EQ(left, 0u);
  EXPECT_EQ(ahead.bytes, 0u);
  return runs;
}

}  // namespace kvxfer

#endif  // KVXFER_TESTS_UNIT_CORE_PLAN_RUN_ORACLE_H_
