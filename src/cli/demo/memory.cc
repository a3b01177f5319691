#include "src/cli/demo/memory.h"

#include "src/cli/common/gpu_memory.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr std::string_view kNextGpu = "cuda";

// The memory of each rank of a side. `before` ranks of the other side come first.
absl::StatusOr<std::vector<MemoryChoice>> ChoicesOf(std::string_view text, size_t ranks,
                                                    size_t before) {
  const absl::StatusOr<MemoryChoice> named = ParseMemoryChoice(text);
  if (!named.ok()) return named.status();
  std::vector<MemoryChoice> choices(ranks, *named);
  if (!named->cuda()) return choices;
  const absl::StatusOr<const cuda::Driver*> driver = DriverFor(named->device);
  if (!driver.ok()) return driver.status();
  if (text != kNextGpu) return choices;
  const size_t devices = (*driver)->devices().size();
  for (size_t i = 0; i < ranks; ++i) {
    choices[i].device = static_cast<int>((before + i) % devices);
  }
  return choices;
}

}  // namespace

absl::StatusOr<DemoMemory> DemoMemoryOf(std::string_view text, size_t prefill, size_t decode) {
  const size_t comma = text.find(',');
  absl::StatusOr<std::vector<MemoryChoice>> here = ChoicesOf(text.substr(0, comma), prefill, 0);
  if (!here.ok()) return here.status();
  absl::StatusOr<std::vector<MemoryChoice>> there =
      ChoicesOf(comma == std::string_view::npos ? text : text.substr(comma + 1), decode, prefill);
  if (!there.ok()) return there.status();
  return DemoMemory{*std::move(here), *std::move(there)};
}

}  // namespace kvxfer::cli
