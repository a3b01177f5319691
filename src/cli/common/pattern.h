// Content that identifies its place: each block has a seed made from its coordinates, and its words
// count up from that seed. A block in a wrong place, a shifted block and a stale block differ in
// every word. Runs at memory speed, so that every byte of every transfer can be checked.
#ifndef KVXFER_CLI_COMMON_PATTERN_H_
#define KVXFER_CLI_COMMON_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

namespace kvxfer::cli {

// The seed for a block with these coordinates, whose order matters.
uint64_t PatternSeed(std::initializer_list<uint64_t> coordinates);

// `bytes` may have any alignment and length.
void FillPattern(std::span<std::byte> bytes, uint64_t seed);

// The offset of the first byte that differs from the pattern; nothing if none does.
std::optional<size_t> FindMismatch(std::span<const std::byte> bytes, uint64_t seed);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_PATTERN_H_
