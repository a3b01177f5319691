#include "src/cli/common/table.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_split.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

// The number of characters in UTF-8 text.
size_t WidthOf(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

Table::Table(const std::string& columns) {
  for (const std::string& column : std::vector<std::string>(absl::StrSplit(columns, '|'))) {
    const size_t colon = column.rfind(':');
    columns_.push_back({column.substr(0, colon), std::stoul(column.substr(colon + 1))});
  }
}

std::string Table::Header() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  return Row(titles);
}

std::string Table::Row(std::span<const std::string> cells) const {
  std::string row;
  for (size_t i = 0; i < cells.size() && i < columns_.size(); ++i) {
    const size_t width = std::max(columns_[i].width, columns_[i].title.size());
    if (i > 0) row += "  ";
    if (cells[i].size() < width) row.append(width - cells[i].size(), ' ');
    row += cells[i];
  }
  return row;
}

void ReportRow::Add(const char* name, const Json& value, std::string cell) {
  json[name] = value;
  cells.push_back(std::move(cell));
}

void ReportRow::Number(const char* name, double value, int decimals) {
  Add(name, value, FormatFixed(value, decimals));
}

void ReportRow::Time(const char* name, double us) { Add(name, us, FormatTime(us * 1e-6)); }

ProgressBar::ProgressBar(std::string_view label, size_t total, bool shown)
    : label_(label),
      total_(std::max<size_t>(total, 1)),
      terminal_(shown && isatty(STDERR_FILENO) == 1) {
  Draw(0, "");
}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Update(size_t done) {
  Draw(static_cast<double>(done) / static_cast<double>(total_),
       std::to_string(done) + "/" + std::to_string(total_));
}

void ProgressBar::UpdatePart(double part) {
  Draw(part, std::to_string(static_cast<int>(std::clamp(part, 0.0, 1.0) * 100)) + " %");
}

void ProgressBar::Draw(double part, const std::string& figure) {
  if (!terminal_) return;
  constexpr size_t kWidth = 40;
  const auto filled = static_cast<size_t>(std::clamp(part, 0.0, 1.0) * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r%s [%s] %s\033[K", label_.c_str(), bar.c_str(), figure.c_str());
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

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
