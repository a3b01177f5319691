#include "src/transport/rail_pairs.h"

#include <algorithm>
#include <tuple>

namespace kvxfer {
namespace {

class PairChooser {
 public:
  explicit PairChooser(const PairTable& table)
      : table_(table), local_uses_(table.local()), remote_uses_(table.remote()) {}

  void Use(const RailPair& pair) {
    ++local_uses_[pair.local];
    ++remote_uses_[pair.remote];
    taken_.push_back(pair);
  }
  void Exclude(std::span<const RailPair> pairs) {
    taken_.insert(taken_.end(), pairs.begin(), pairs.end());
  }
  // The best pair that is not excluded; `fresh`: one of its places must not be in a pair yet.
  std::optional<RailPair> Best(bool fresh) const {
    std::optional<RailPair> best;
    for (size_t l = 0; l < table_.local(); ++l) {
      for (size_t r = 0; r < table_.remote(); ++r) {
        const RailPair pair{l, r};
        if (!table_.rank(pair) || std::ranges::find(taken_, pair) != taken_.end()) continue;
        if (fresh && local_uses_[l] > 0 && remote_uses_[r] > 0) continue;
        if (!best || Cost(pair) < Cost(*best)) best = pair;
      }
    }
    return best;
  }

 private:
  std::tuple<uint8_t, size_t, size_t, size_t> Cost(const RailPair& pair) const {
    // Compared in this order: rank, how often the two places are used, and indices that lie close
    // to the diagonal, so that equal ports pair up one to one.
    const size_t uses = local_uses_[pair.local] + remote_uses_[pair.remote];
    return {*table_.rank(pair), uses, std::max(pair.local, pair.remote), pair.local + pair.remote};
  }

  const PairTable& table_;
  std::vector<size_t> local_uses_;
  std::vector<size_t> remote_uses_;
  std::vector<RailPair> taken_;
};

}  // namespace

std::vector<RailPair> ChooseRailPairs(const PairTable& table, size_t most) {
  PairChooser chooser(table);
  std::vector<RailPair> out;
  while (out.size() < most) {
    const std::optional<RailPair> best = chooser.Best(/*fresh=*/true);
    if (!best) break;
    chooser.Use(*best);
    out.push_back(*best);
  }
  return out;
}

std::vector<RailPair> PairsOfOthers(size_t rails, size_t self,
                                    absl::FunctionRef<RailPair(size_t rail)> pair_of) {
  std::vector<RailPair> out;
  for (size_t rail = 0; rail < rails; ++rail) {
    if (rail != self) out.push_back(pair_of(rail));
  }
  return out;
}

std::optional<RailPair> ChooseOtherPair(const PairTable& table, std::span<const RailPair> used,
                                        std::span<const RailPair> bad) {
  PairChooser chooser(table);
  for (const RailPair& pair : used) chooser.Use(pair);
  chooser.Exclude(bad);
  return chooser.Best(/*fresh=*/false);
}

}  // namespace kvxfer
