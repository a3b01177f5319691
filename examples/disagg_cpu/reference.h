// What the instances have to come to: the same model in one process, whose KV cache is neither
// paged nor ever moved.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_REFERENCE_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_REFERENCE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace disagg {

// `count` tokens that follow the prompt.
absl::StatusOr<std::vector<uint32_t>> GenerateAlone(uint64_t model_seed,
                                                    std::span<const uint32_t> prompt,
                                                    uint32_t count);

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_REFERENCE_H_
