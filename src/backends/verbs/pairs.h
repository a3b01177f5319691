// Which port of ours talks to which of the peer's. Pure.
//
// Ports may talk where their link layer is the same, both have the same fabric name or one has
// none, and, on InfiniBand without names, their subnet prefixes are equal. That is a hint: a pair
// is used only once a write over it has been verified. A port that is down, or of no use as it is,
// has no GID: it may talk to any of its link layer, and comes after those that have one.
//
// Rails are pairs chosen so that every port that has a partner is used, ports of one subnet before
// others, and each as evenly as may be: 2 to 2 makes two rails, 4 to 2 four, 1 to 8 eight.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_VERBS_PAIRS_H_
#define KVXFER_BACKENDS_VERBS_PAIRS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/backends/verbs/port.h"

namespace kvxfer::verbs {

// Indices into the ports of the two sides.
struct Pair {
  size_t local = 0;
  size_t remote = 0;

  bool operator==(const Pair&) const = default;
};

// Why the two cannot talk; empty: they may.
std::string WhyApart(const PortInfo& a, const PortInfo& b);

// At most `most` pairs, the best first.
std::vector<Pair> ChoosePairs(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                              size_t most);

// Another pair in the place of one that did not answer: not in `bad`, not in `used`, and the one
// that uses least what `used` uses already.
std::optional<Pair> ChooseOther(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                                std::span<const Pair> used, std::span<const Pair> bad);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PAIRS_H_
