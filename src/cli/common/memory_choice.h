// Which memory the processes of a run take: what --memory says.
//
// Thread-safety: plain values; pure functions.
#ifndef KVXFER_CLI_COMMON_MEMORY_CHOICE_H_
#define KVXFER_CLI_COMMON_MEMORY_CHOICE_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvxfer::cli {

enum class MemorySource {
  kMapped,          // HostBuffer: a peer on this host maps it
  kMappedSmall,     // the same with small pages
  kMappedReserved,  // the same with reserved huge pages
  kAttached,        // anonymous memory, as malloc gives: a peer on this host attaches to it
  kCuda,            // of a GPU
};

struct MemoryChoice {
  MemoryChoice() = default;
  // One that is not a GPU's is its source and nothing else.
  MemoryChoice(MemorySource from, int of_device = 0)  // NOLINT(google-explicit-constructor)
      : source(from), device(of_device) {}

  MemorySource source = MemorySource::kMapped;
  int device = 0;  // of kCuda: as CUDA numbers them in this process

  bool cuda() const { return source == MemorySource::kCuda; }
  // As ParseMemoryChoice takes it.
  std::string ToString() const;
  bool operator==(const MemoryChoice&) const = default;
};

inline constexpr const char* kMemoryHelp =
    "mapped (or host), attached, cuda or cuda:N: of a GPU; mapped-small, mapped-reserved: what "
    "HostBuffer gives, with these pages; two with a comma: of this side, of the other";

// "mapped", "host" (the same), "mapped-small", "mapped-reserved", "attached", "cuda:1" or "cuda"
// (the first one).
absl::StatusOr<MemoryChoice> ParseMemoryChoice(std::string_view text);

// Of the two sides of a run: initiators and targets, prefill and decode.
struct MemorySides {
  MemoryChoice here{};
  MemoryChoice there{};

  // "cuda:0", or where they differ "mapped here, cuda:1 there".
  std::string Words() const;
};

// One for both, or two with a comma: "mapped,cuda:1".
absl::StatusOr<MemorySides> ParseMemorySides(std::string_view text);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_MEMORY_CHOICE_H_
