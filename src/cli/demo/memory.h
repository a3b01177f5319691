// The memory that the ranks of `kvxfer demo` use.
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

// Parses --memory as ParseMemorySides does, except that "cuda" gives each rank the next GPU,
// prefill ranks first; after the last GPU it continues with the first. Returns the error of
// DriverFor for a GPU that cannot be used, before a process is started for it.
absl::StatusOr<DemoMemory> DemoMemoryOf(std::string_view text, size_t prefill, size_t decode);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_MEMORY_H_
