// Content that says where it belongs: every block has a seed made from its place, and word i of it
// is a counter that starts at that seed. A block that lands elsewhere, a shifted or a stale one
// differs in every word. Fast enough (memory speed) to check every byte of every transfer.
#ifndef KVXFER_CLI_COMMON_PATTERN_H_
#define KVXFER_CLI_COMMON_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace kvxfer::cli {

// Mixes the coordinates of a block, in order, into its seed.
uint64_t PatternSeed(std::initializer_list<uint64_t> coordinates);

// `bytes` may have any alignment and length.
void FillPattern(std::span<std::byte> bytes, uint64_t seed);

// The offset of the first byte that is not the pattern's; nothing when all are.
std::optional<size_t> FindMismatch(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_PATTERN_H_
