#include "src/cli/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/cli/units.h"

namespace kvxfer::cli {
namespace {

// CLI11 takes errors by exception only; App::parse's caller turns it into an exit status.
template <typename Value>
CLI::Option* Add(CLI::App* app, const std::string& name, Value& value,
                 const std::string& shown_default, const std::string& help,
                 absl::StatusOr<Value> (*parse)(std::string_view)) {
  CLI::Option* option = app->add_option_function<std::string>(
      name,
      [name, &value, parse](const std::string& text) {
        absl::StatusOr<Value> parsed = parse(text);
        if (!parsed.ok()) {
          throw CLI::ValidationError(name, std::string(parsed.status().message()));
        }
        value = std::move(*parsed);
      },
      help);
  return option->default_str(shown_default);
}

}  // namespace

absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be from ", least, " to ", most, ", not ", value));
}

absl::Status CheckOneOf(const char* name, const std::string& value,
                        const std::vector<std::string>& allowed) {
  if (std::ranges::find(allowed, value) != allowed.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be ", absl::StrJoin(allowed, " or "), ", not '", value, "'"));
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
