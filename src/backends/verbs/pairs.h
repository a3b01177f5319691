// Which local port talks to which port of the peer.
//
// src/core/topology/rails.h decides from the ports' hints whether they may talk: they have the same
// link layer, and both have the same fabric name or one has none; on InfiniBand without names their
// subnet prefixes are equal. A pair carries data only after a write over it has been verified. A
// port that is down or unusable has no GID: it may talk to any port of its link layer, and comes
// after ports that have a GID.
//
// Pairs that probably talk come first, then those in one subnet. src/transport/rail_pairs.h
// describes how pairs are chosen.
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

// OK: some pair may talk. Unavailable: why none may.
absl::Status CheckPairs(std::span<const PortInfo> local, std::span<const PortInfo> remote);

// At most `most` pairs, best first.
std::vector<Pair> ChoosePairs(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                              size_t most);

// A replacement for a pair that did not answer: neither in `bad` nor in `used`, and the one that
// shares least with `used`.
std::optional<Pair> ChooseOther(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                                std::span<const Pair> used, std::span<const Pair> bad);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PAIRS_H_
