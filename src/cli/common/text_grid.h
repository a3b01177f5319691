// Text in columns that are as wide as their longest cell.
#ifndef KVXFER_CLI_COMMON_TEXT_GRID_H_
#define KVXFER_CLI_COMMON_TEXT_GRID_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace kvxfer::cli {

class TextGrid {
 public:
  enum class Align { kLeft, kRight };
  // One alignment for each column; further columns are aligned left.
  explicit TextGrid(std::vector<Align> columns = {}) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Each row is a line that begins with `indent`, has two spaces between columns and no spaces at
  // its end.
  std::string ToString(const std::string& indent = "") const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_TEXT_GRID_H_
