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
#include "src/cli/common/did_you_mean.h"
#include "src/cli/common/units.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

// An option's type name holds its words: "HND|NHD", or with a label "NAME {tcp|shm}".
constexpr const char* kBetweenWords = "|";
constexpr const char* kBeforeWords = " {";
constexpr const char* kBehindWords = "}";

// The first long name: "--threads" of "-t,--threads,--num-threads".
std::string LongName(const std::string& names) {
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    if (absl::StartsWith(name, "--")) return std::string(name);
  }
  return names;
}

// CLI11 takes errors by exception only; CommandLine::Parse turns them into a Status.
template <typename Value, typename Parse>
CLI::Option* Add(CLI::App* app, const std::string& name, Value& value,
                 const std::string& shown_default, const std::string& help, Parse parse) {
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

// CLI11's own conversion turns "-5" into 18446744073709551611, and a number that is too large into
// the largest one.
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

CLI::Option* AddText(CLI::App* app, const std::string& name, std::string& value,
                     const std::string& label, const std::string& help) {
  return app->add_option(name, value, help)->default_str(value)->type_name(label);
}

CLI::Option* AddChecked(CLI::App* app, const std::string& name, std::string& value,
                        const std::string& label, const std::string& help,
                        absl::Status (*check)(std::string_view text)) {
  const auto parse = [check](std::string_view text) -> absl::StatusOr<std::string> {
    if (absl::Status status = check(text); !status.ok()) return status;
    return std::string(text);
  };
  return Add(app, name, value, value, help, parse)->type_name(label);
}

CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string& value,
                       const std::vector<std::string>& choices, const std::string& help) {
  const auto parse = [choices](std::string_view text) -> absl::StatusOr<std::string> {
    for (const std::string& choice : choices) {
      if (absl::EqualsIgnoreCase(choice, ToAbsl(text))) return choice;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("'", ToAbsl(text), "': choose ", JoinOr(choices), DidYouMean(text, choices)));
  };
  return Add(app, name, value, value, help, parse)
      ->type_name(absl::StrJoin(choices, kBetweenWords));
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, uint64_t& value,
                       const std::string& help) {
  return Add(app, name, value, absl::StrCat(value), help, &ParseWhole)->type_name("N");
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<uint64_t>& value,
                       const std::string& help) {
  return Add(app, name, value, "", help, &ParseOptional)->type_name("N");
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, double& value,
                       const std::string& help) {
  return Add(app, name, value, absl::StrCat(value), help, &ParseFraction)->type_name("X");
}

CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t& value,
                     const std::string& help) {
  return Add(app, name, value, FormatSize(value), help, &ParseSize)->type_name("SIZE");
}

CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>& value,
                      const std::string& shown_default, const std::string& help) {
  value = ParseSizes(shown_default).value_or(std::vector<uint64_t>{});
  return Add(app, name, value, shown_default, help, &ParseSizes)->type_name("SIZES");
}

CLI::Option* AddDuration(CLI::App* app, const std::string& name, Duration& value,
                         const std::string& help) {
  return Add(app, name, value, FormatDuration(value), help, &ParseDuration)->type_name("TIME");
}

CLI::Option* SuggestWords(CLI::Option* option, const std::string& label,
                          const std::vector<std::string>& words) {
  return option->type_name(
      absl::StrCat(label, kBeforeWords, absl::StrJoin(words, kBetweenWords), kBehindWords));
}

ValueWords ValueWordsOf(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  const size_t open = name.find(kBeforeWords);
  if (open != std::string::npos) {
    const size_t begin = open + std::string_view(kBeforeWords).size();
    const std::string words = name.substr(begin, name.rfind(kBehindWords) - begin);
    return {.label = name.substr(0, open), .words = absl::StrSplit(words, kBetweenWords)};
  }
  if (name.find(kBetweenWords) == std::string::npos) return {.label = name};
  return {.words = absl::StrSplit(name, kBetweenWords)};
}

}  // namespace kvxfer::cli
