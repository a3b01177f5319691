#include "src/cli/common/text_grid.h"

#include <algorithm>

namespace kvxfer::cli {
namespace {

// The number of characters in UTF-8 text.
size_t WidthOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string TextGrid::ToString(const std::string& indent) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    if (row.size() > widths.size()) widths.resize(row.size());
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], WidthOf(row[i]));
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - WidthOf(row[i]), ' ');
      const bool right = i < columns_.size() && columns_[i] == Align::kRight;
      if (i > 0) line += "  ";
      line += right ? space + row[i] : row[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace kvxfer::cli
