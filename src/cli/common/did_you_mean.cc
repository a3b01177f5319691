#include "src/cli/common/did_you_mean.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {

std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::string typed = absl::AsciiStrToLower(ToAbsl(word));
  std::vector<std::string> lower;
  lower.reserve(known.size());
  for (const std::string& one : known) lower.push_back(absl::AsciiStrToLower(one));
  const std::string nearest = NearestWord(typed, lower);
  for (size_t i = 0; i < known.size() && !nearest.empty(); ++i) {
    if (lower[i] == nearest) return absl::StrCat("; did you mean ", known[i], "?");
  }
  return "";
}

std::string DidYouMeanOrChoose(std::string_view word, const std::vector<std::string>& known) {
  std::string nearest = DidYouMean(word, known);
  return nearest.empty() ? absl::StrCat("; choose ", JoinOr(known)) : nearest;
}

std::string JoinOr(const std::vector<std::string>& words) {
  if (words.size() < 2) return absl::StrJoin(words, "");
  return absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ", words.back());
}

}  // namespace kvxfer::cli
