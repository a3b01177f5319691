#include "src/cli/reference/help.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "src/cli/reference/describe.h"

namespace kvxfer::cli {
namespace {

// Breaks lines at spaces; a longer word has a line of its own.
std::string Wrapped(const std::string& text, size_t width) {
  std::string out;
  size_t used = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool fits = used + 1 + word.size() <= width;
    if (used > 0) absl::StrAppend(&out, fits ? " " : "\n");
    used = used > 0 && fits ? used + 1 + word.size() : word.size();
    absl::StrAppend(&out, word);
  }
  return out;
}

}  // namespace

std::string HelpFormatter::make_option_name(const CLI::Option* option,
                                            bool /*is_positional*/) const {
  return absl::StrJoin(Describe(*option).names, ",");
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const OptionReference described = Describe(*option);
  if (!described.takes_value) return "";
  std::string text = absl::StrCat(" ", described.label);
  if (!described.default_value.empty()) absl::StrAppend(&text, "=", described.default_value);
  if (described.repeats) absl::StrAppend(&text, " ...");
  return text;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  constexpr size_t kLineWidth = 100;
  const OptionReference described = Describe(*option);
  std::string text = described.help;
  // A label that is not the list of words hides them.
  const std::string words = absl::StrJoin(described.words, "|");
  if (!words.empty() && words != described.label) {
    absl::StrAppend(&text, ". Known: ", absl::StrJoin(described.words, ", "));
  }
  return Wrapped(text, kLineWidth - get_column_width());
}

}  // namespace kvxfer::cli
