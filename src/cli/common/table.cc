#include "src/cli/common/table.h"

#include <unistd.h>

#include <algorithm>

namespace kvxfer::cli {

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

}  // namespace kvxfer::cli
