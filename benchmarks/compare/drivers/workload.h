// The one workload: which block goes where, and what is in it. The Python drivers have the same in
// benchmarks/compare/workload.py.
//
// Thread-safety: pure functions.
#ifndef KVXFER_BENCHMARKS_COMPARE_DRIVERS_WORKLOAD_H_
#define KVXFER_BENCHMARKS_COMPARE_DRIVERS_WORKLOAD_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace compare {

inline constexpr uint64_t kSourceSeed = 2;
inline constexpr uint64_t kTargetSeed = 3;

// The numbers below `count` in an order drawn from `seed`, as a paged cache hands out blocks after
// long use. The same on every host and in both languages.
std::vector<uint32_t> Permutation(uint32_t count, uint64_t seed);

// Tells one work from another: the runner sees to it that all contestants have the same.
uint64_t Fingerprint(uint64_t block_bytes, std::span<const uint32_t> source_ids,
                     std::span<const uint32_t> target_ids);

// Block ids[i] gets content that says that it is number i: word w of the i-th block is
// (i * words + w + 1) * odd constant + seed, so every word of a transfer differs from all others.
void FillBlocks(std::span<std::byte> memory, uint64_t block_bytes, std::span<const uint32_t> ids,
                uint64_t seed);
// Empty when all is there, else what is wrong first.
std::string CheckBlocks(std::span<const std::byte> memory, uint64_t block_bytes,
                        std::span<const uint32_t> ids, uint64_t seed);

}  // namespace compare

#endif  // KVXFER_BENCHMARKS_COMPARE_DRIVERS_WORKLOAD_H_
