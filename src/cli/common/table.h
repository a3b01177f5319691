// Tables, and a progress bar.

#ifndef KVXFER_CLI_COMMON_TABLE_H_
#define KVXFER_CLI_COMMON_TABLE_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// A table that grows a row at a time, with right-aligned columns. A column is as wide as its title
// or its given width; a longer cell moves the rest of its row to the right.
class Table {
 public:
  struct Column {
    std::string title;
    size_t width = 0;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // From "title:width|title:width|...".
  explicit Table(const std::string& columns);

  std::string Header() const;
  std::string Row(std::span<const std::string> cells) const;

 private:
  std::vector<Column> columns_;
};

// One row of a report: an object in JSON, and cells of a table.
struct ReportRow {
  Json json = Json::object();
  std::vector<std::string> cells{};

  void Add(const char* name, const Json& value, std::string cell);
  void Add(const char* name, const std::string& text) { Add(name, text, text); }
  void Count(const char* name, uint64_t value) { Add(name, value, std::to_string(value)); }
  void Number(const char* name, double value, int decimals);
  void Time(const char* name, double us);
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

// Text in columns that are as wide as their longest cell.
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

#endif  // KVXFER_CLI_COMMON_TABLE_H_
