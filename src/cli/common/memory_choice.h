// Which memory the processes of a run use: the values of --memory.
//
// Thread-safety: plain values; pure functions.
#ifndef KVXFER_CLI_COMMON_MEMORY_CHOICE_H_
#define KVXFER_CLI_COMMON_MEMORY_CHOICE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvxfer::cli {

enum class MemorySource {
  kMapped,          // HostBuffer: a peer on this host maps it
  kMappedSmall,     // the same with small pages
  kMappedReserved,  // the same with reserved huge pages
  kAttached,        // anonymous memory, as from malloc: a peer on this host attaches to it
  kCuda,            // memory of a GPU
};

struct MemoryChoice {
  MemoryChoice() = default;
  // `of_device` is for kCuda only.
  MemoryChoice(MemorySource from, int of_device = 0)  // NOLINT(google-explicit-constructor)
      : source(from), device(of_device) {}

  MemorySource source = MemorySource::kMapped;
  int device = 0;  // for kCuda: the number that CUDA gives the GPU in this process

  bool cuda() const { return source == MemorySource::kCuda; }
  // As ParseMemoryChoice takes it.
  std::string ToString() const;
  bool operator==(const MemoryChoice&) const = default;
};

// The words that ParseMemoryChoice takes, for help and completion.
std::vector<std::string> MemoryWords();

// "mapped" or "host", which mean the same; "mapped-small", "mapped-reserved", "attached"; "cuda:1",
// or "cuda" for the first GPU.
absl::StatusOr<MemoryChoice> ParseMemoryChoice(std::string_view text);

// The memory of the two sides of a run: initiators (here) and targets (there), or prefill and
// decode.
struct MemorySides {
  MemoryChoice here{};
  MemoryChoice there{};

  // "cuda:0 memory", or "mapped memory at the initiator, cuda:1 memory at the target".
  std::string Words() const;
};

// One value for both sides, or two separated by a comma: "mapped,cuda:1".
absl::StatusOr<MemorySides> ParseMemorySides(std::string_view text);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_MEMORY_CHOICE_H_
