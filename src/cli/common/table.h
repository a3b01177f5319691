// Tables that grow a row at a time, and a progress bar.
#ifndef KVXFER_CLI_COMMON_TABLE_H_
#define KVXFER_CLI_COMMON_TABLE_H_

#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvxfer::cli {

// Right-aligned columns. A column is as wide as its title or its given width; a longer cell moves
// the rest of its row to the right.
class Table {
 public:
  struct Column {
    std::string title;
    size_t width = 0;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  std::string Header() const;
  std::string Row(std::span<const std::string> cells) const;

 private:
  std::vector<Column> columns_;
};

// Draws on stderr, if that is a terminal. The destructor clears it.
class ProgressBar {
 public:
  ProgressBar(std::string_view label, size_t total, bool shown = true);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void Update(size_t done);
  // For work that is not counted: the share `part`, at most 1, is done.
  void UpdatePart(double part);
  void Clear();

 private:
  void Draw(double part, const std::string& figure);

  const std::string label_;
  const size_t total_;
  const bool terminal_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_TABLE_H_
