// Which place of ours talks to which of the peer's, where a rail is a pair of places: ports of RDMA
// devices, or IP addresses. Pure.
//
// Pairs are chosen so that every place that has a partner is used, better pairs before others, and
// each place as evenly as may be: 2 to 2 makes two pairs, 4 to 2 four, 1 to 8 eight.
//
// Thread-safety: plain values and functions without state.
//
// Example:
//   PairTable table(2, 2);
//   table.Set(0, 0, 0);  // the two of subnet A
//   table.Set(1, 1, 0);  // those of subnet B; the others cannot talk
//   std::vector<RailPair> pairs = ChooseRailPairs(table, 16);

#ifndef KVXFER_TRANSPORT_RAIL_PAIRS_H_
#define KVXFER_TRANSPORT_RAIL_PAIRS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvxfer {

// Indices into the places of the two sides.
struct RailPair {
  size_t local = 0;
  size_t remote = 0;

  bool operator==(const RailPair&) const = default;
};

// What is known beforehand of each pair.
class PairTable {
 public:
  // No pair can talk.
  PairTable(size_t local, size_t remote) : local_(local), remote_(remote), ranks_(local * remote) {}

  // It may; of two pairs the one with the lower rank comes first.
  void Set(size_t local, size_t remote, uint8_t rank) { ranks_[local * remote_ + remote] = rank; }
  // Empty: it cannot.
  std::optional<uint8_t> rank(const RailPair& pair) const {
    return ranks_[pair.local * remote_ + pair.remote];
  }
  size_t local() const { return local_; }
  size_t remote() const { return remote_; }

 private:
  size_t local_;
  size_t remote_;
  std::vector<std::optional<uint8_t>> ranks_;
};

// At most `most` pairs, the best first.
std::vector<RailPair> ChooseRailPairs(const PairTable& table, size_t most);

// Another pair in the place of one that did not answer: not in `bad`, not in `used`, and the one
// that uses least what `used` uses already.
std::optional<RailPair> ChooseOtherPair(const PairTable& table, std::span<const RailPair> used,
                                        std::span<const RailPair> bad);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_RAIL_PAIRS_H_
