// Columns that are as wide as what is in them.
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
  // One for each column; columns without one are aligned left.
  explicit TextGrid(std::vector<Align> columns = {}) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Every row on a line that begins with `indent`; two spaces between columns, none at the end.
  std::string ToString(const std::string& indent = "") const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_TEXT_GRID_H_
