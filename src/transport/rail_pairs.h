// Pairs the places of this agent with the peer's, if a rail is a pair of places: ports of RDMA
// devices, or IP addresses. Pure.
//
// Every place that has a partner is used, better pairs come first, and places are used as evenly as
// possible: 2 and 2 places make two pairs, 4 and 2 make four, 1 and 8 make eight.
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

#include "absl/functional/function_ref.h"

namespace kvxfer {

// Indices into the places of the two sides.
struct RailPair {
  size_t local = 0;
  size_t remote = 0;

  bool operator==(const RailPair&) const = default;
};

// What is known in advance about each pair.
class PairTable {
 public:
  // Initially no pair can talk.
  PairTable(size_t local, size_t remote) : local_(local), remote_(remote), ranks_(local * remote) {}

  // The pair can talk; a lower rank is better.
  void Set(size_t local, size_t remote, uint8_t rank) { ranks_[local * remote_ + remote] = rank; }
  // nullopt: the pair cannot talk.
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

// The pairs of all rails but `self`.
std::vector<RailPair> PairsOfOthers(size_t rails, size_t self,
                                    absl::FunctionRef<RailPair(size_t rail)> pair_of);

// A replacement for a pair that did not answer: neither in `bad` nor in `used`, and with the places
// that `used` uses least.
std::optional<RailPair> ChooseOtherPair(const PairTable& table, std::span<const RailPair> used,
                                        std::span<const RailPair> bad);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_RAIL_PAIRS_H_
