#include "src/cli/common/memory_choice.h"

#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "src/cli/common/did_you_mean.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr std::array kHostNames = {
    std::pair{std::string_view("mapped"), MemorySource::kMapped},
    std::pair{std::string_view("host"), MemorySource::kMapped},
    std::pair{std::string_view("mapped-small"), MemorySource::kMappedSmall},
    std::pair{std::string_view("mapped-reserved"), MemorySource::kMappedReserved},
    std::pair{std::string_view("attached"), MemorySource::kAttached}};
constexpr std::string_view kCudaName = "cuda";

// The N of "cuda:N", or 0 for "cuda"; empty if the text is neither.
std::optional<int> CudaDevice(std::string_view text) {
  constexpr int kMost = 1023;
  if (text == kCudaName) return 0;
  if (!text.starts_with(kCudaName) || text.substr(kCudaName.size(), 1) != ":") return std::nullopt;
  const std::string_view digits = text.substr(kCudaName.size() + 1);
  int device = 0;
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, device);
  if (error != std::errc() || rest != end || device < 0 || device > kMost) return std::nullopt;
  return device;
}

}  // namespace

absl::StatusOr<MemoryChoice> ParseMemoryChoice(std::string_view text) {
  for (const auto& [name, source] : kHostNames) {
    if (name == text) return MemoryChoice(source);
  }
  if (const std::optional<int> device = CudaDevice(text)) {
    return MemoryChoice(MemorySource::kCuda, *device);
  }
  return absl::InvalidArgumentError(absl::StrCat("memory '", ToAbsl(text), "': choose ",
                                                 JoinOr(MemoryWords()),
                                                 DidYouMean(text, MemoryWords())));
}

std::vector<std::string> MemoryWords() {
  std::vector<std::string> words;
  words.reserve(kHostNames.size() + 2);
  for (const auto& [name, source] : kHostNames) words.emplace_back(name);
  words.emplace_back(kCudaName);
  words.push_back(std::string(kCudaName) + ":N");
  return words;
}

std::string MemoryChoice::ToString() const {
  if (cuda()) return absl::StrCat(ToAbsl(kCudaName), ":", device);
  for (const auto& [name, of_host] : kHostNames) {
    if (of_host == source) return std::string(name);
  }
  return "";
}

std::string MemorySides::Words() const {
  if (here == there) return here.ToString() + " memory";
  return absl::StrCat(here.ToString(), " memory at the initiator, ", there.ToString(),
                      " memory at the target");
}

absl::StatusOr<MemorySides> ParseMemorySides(std::string_view text) {
  const size_t comma = text.find(',');
  const absl::StatusOr<MemoryChoice> here = ParseMemoryChoice(text.substr(0, comma));
  if (!here.ok()) return here.status();
  if (comma == std::string_view::npos) return MemorySides{*here, *here};
  const absl::StatusOr<MemoryChoice> there = ParseMemoryChoice(text.substr(comma + 1));
  if (!there.ok()) return there.status();
  return MemorySides{*here, *there};
}

}  // namespace kvxfer::cli
