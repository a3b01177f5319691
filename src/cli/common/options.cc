#include "src/cli/common/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "src/cli/common/units.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

// "--threads" of "-t,--threads,--num-threads".
std::string LongName(const std::string& names) {
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    if (absl::StartsWith(name, "--")) return std::string(name);
  }
  return names;
}

// CLI11 takes errors by exception only; App::parse's caller turns it into an exit status.
template <typename Value>
CLI::Option* Add(CLI::App* app, const std::string& name, Value& value,
                 const std::string& shown_default, const std::string& help,
                 absl::StatusOr<Value> (*parse)(std::string_view)) {
  CLI::Option* option = app->add_option_function<std::string>(
      name,
      [name = LongName(name), &value, parse](const std::string& text) {
        absl::StatusOr<Value> parsed = parse(text);
        if (!parsed.ok()) {
          throw CLI::ValidationError(name, std::string(parsed.status().message()));
        }
        value = std::move(*parsed);
      },
      help);
  return option->default_str(shown_default);
}

// The parser's own conversion takes "-5" for 18446744073709551611, and what is too large for the
// largest.
absl::StatusOr<uint64_t> ParseWhole(std::string_view text) {
  uint64_t number = 0;
  const bool digits = std::ranges::all_of(text, absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(ToAbsl(text), &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat(
      "'", ToAbsl(text), "': write a whole number that is not below zero and fits 64 bits"));
}

absl::StatusOr<std::optional<uint64_t>> ParseOptional(std::string_view text) {
  const absl::StatusOr<uint64_t> number = ParseWhole(text);
  if (!number.ok()) return number.status();
  return *number;
}

absl::StatusOr<double> ParseFraction(std::string_view text) {
  double number = 0;
  if (absl::SimpleAtod(ToAbsl(text), &number) && std::isfinite(number)) return number;
  return absl::InvalidArgumentError(
      absl::StrCat("'", ToAbsl(text), "': write a number, such as 2 or 1.5"));
}

}  // namespace

absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be from ", least, " to ", most, ", not ", value));
}

absl::Status CheckAboveZero(const char* name, Duration value) {
  if (value > Duration::zero()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " must be above zero"));
}

absl::Status CheckOneOf(const char* name, const std::string& value,
                        const std::vector<std::string>& allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be ", absl::StrJoin(allowed, " or "), ", not '", value, "'"));
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, uint64_t& value,
                       const std::string& help) {
  return Add<uint64_t>(app, name, value, absl::StrCat(value), help, &ParseWhole)->type_name("N");
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<uint64_t>& value,
                       const std::string& help) {
  return Add<std::optional<uint64_t>>(app, name, value, "", help, &ParseOptional)->type_name("N");
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, double& value,
                       const std::string& help) {
  return Add<double>(app, name, value, absl::StrCat(value), help, &ParseFraction)->type_name("X");
}

CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t& value,
                     const std::string& help) {
  return Add<uint64_t>(app, name, value, FormatBytes(value), help, &ParseSize);
}

CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>& value,
                      const std::string& shown_default, const std::string& help) {
  value = ParseSizes(shown_default).value_or(std::vector<uint64_t>{});
  return Add<std::vector<uint64_t>>(app, name, value, shown_default, help, &ParseSizes);
}

CLI::Option* AddDuration(CLI::App* app, const std::string& name, Duration& value,
                         const std::string& help) {
  return Add<Duration>(app, name, value, FormatFixed(Seconds(value), 1) + "s", help,
                       &ParseDuration);
}

}  // namespace kvxfer::cli
