#include "src/core/base/nearest_word.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace kvxfer {
namespace {

// Optimal string alignment distance: Levenshtein distance in which swapping two neighbours costs 1.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> of(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) of[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) of[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      of[i][j] = std::min(
          {of[i - 1][j] + 1, of[i][j - 1] + 1, of[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        of[i][j] = std::min(of[i][j], of[i - 2][j - 2] + 1);
      }
    }
  }
  return of[a.size()][b.size()];
}

}  // namespace

std::string NearestWord(std::string_view word, const std::vector<std::string>& known) {
  std::pair<size_t, const std::string*> best{word.size() / 3 + 1, nullptr};
  for (const std::string& one : known) {
    const size_t distance = Distance(word, one);
    if (distance < best.first) best = {distance, &one};
  }
  return best.second == nullptr ? "" : *best.second;
}

}  // namespace kvxfer
