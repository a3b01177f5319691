#include "src/cli/table.h"

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

ProgressBar::ProgressBar(std::string_view label, size_t total)
    : label_(label), total_(std::max<size_t>(total, 1)), terminal_(isatty(STDERR_FILENO) == 1) {
  Update(0);
}

ProgressBar::~ProgressBar() { Clear(); }

void ProgressBar::Update(size_t done) {
  if (!terminal_) return;
  constexpr size_t kWidth = 40;
  const size_t filled = std::min(done, total_) * kWidth / total_;
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, '.');
  std::fprintf(stderr, "\r%s [%s] %zu/%zu", label_.c_str(), bar.c_str(), done, total_);
  std::fflush(stderr);
}

void ProgressBar::Clear() {
  if (terminal_) std::fputs("\r\033[K", stderr);
}

}  // namespace kvxfer::cli
