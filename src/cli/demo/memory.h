// Which memory the ranks of `kvxfer demo` take.
//
// Thread-safety: a function without state of its own.
#ifndef KVXFER_CLI_DEMO_MEMORY_H_
#define KVXFER_CLI_DEMO_MEMORY_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli {

struct DemoMemory {
  std::vector<MemoryChoice> prefill{};  // by rank
  std::vector<MemoryChoice> decode{};
};

// Of --memory: as ParseMemorySides has it, except that "cuda" gives each rank the next GPU of those
// that there are, prefill ranks first. A GPU that cannot be used is refused, as by DriverFor,
// before there is a process for it.
absl::StatusOr<DemoMemory> DemoMemoryOf(std::string_view text, size_t prefill, size_t decode);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_MEMORY_H_
