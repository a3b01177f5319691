// Which port of ours talks to which of the peer's. Pure.
//
// Whether ports may talk is what src/core/topology/rails.h makes of their hints: their link layer
// is the same, both have the same fabric name or one has none, and, on InfiniBand without names,
// their subnet prefixes are equal. A pair is used only once a write over it has been verified. A
// port that is down, or of no use as it is, has no GID: it may talk to any of its link layer, and
// comes after those that have one.
//
// Pairs that likely talk come first, then those of one subnet; src/transport/rail_pairs.h says how
// they are chosen.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_VERBS_PAIRS_H_
#define KVXFER_BACKENDS_VERBS_PAIRS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "src/backends/verbs/port.h"
#include "src/transport/rail_pairs.h"

namespace kvxfer::verbs {

// Indices into the ports of the two sides.
using Pair = RailPair;

// Why the two cannot talk; empty: they may.
std::string WhyApart(const PortInfo& a, const PortInfo& b);

// Why no pair of them may talk; Unavailable, but OK where one may.
absl::Status CheckPairs(std::span<const PortInfo> local, std::span<const PortInfo> remote);

// At most `most` pairs, the best first.
std::vector<Pair> ChoosePairs(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                              size_t most);

// Another pair in the place of one that did not answer: not in `bad`, not in `used`, and the one
// that uses least what `used` uses already.
std::optional<Pair> ChooseOther(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                                std::span<const Pair> used, std::span<const Pair> bad);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PAIRS_H_
