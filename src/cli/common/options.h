// Options of the command line: numbers, sizes, times, and choices from a list. A value that does
// not parse is a usage error that names the option, the value and what is allowed.
#ifndef KVXFER_CLI_COMMON_OPTIONS_H_
#define KVXFER_CLI_COMMON_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/types.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvxfer::cli {

// InvalidArgument names the option and its range.
absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most);
absl::Status CheckAboveZero(const char* name, Duration value);

// Each function declares one option. `value` holds the default, which --help shows, and keeps it
// unless the option is given. `value` must live as long as `app`. `label` stands for the value in
// help: "FILE", "FOLDER", "HOST:PORT".
CLI::Option* AddText(CLI::App* app, const std::string& name, std::string& value,
                     const std::string& label, const std::string& help);
// The same; `check` refuses a value that makes no sense.
CLI::Option* AddChecked(CLI::App* app, const std::string& name, std::string& value,
                        const std::string& label, const std::string& help,
                        absl::Status (*check)(std::string_view text));
// One of `choices`, in upper or lower case; `value` becomes the choice as it is spelled here.
CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string& value,
                       const std::vector<std::string>& choices, const std::string& help);
// A whole number; the `double` overload takes any finite number.
CLI::Option* AddNumber(CLI::App* app, const std::string& name, uint64_t& value,
                       const std::string& help);
// Empty unless the option is given; `help` says what holds then.
CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<uint64_t>& value,
                       const std::string& help);
CLI::Option* AddNumber(CLI::App* app, const std::string& name, double& value,
                       const std::string& help);
CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t& value,
                     const std::string& help);
// `shown_default` may be empty: then `value` has no default.
CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>& value,
                      const std::string& shown_default, const std::string& help);
CLI::Option* AddDuration(CLI::App* app, const std::string& name, Duration& value,
                         const std::string& help);

// Lists words that the option takes among others; help and shell completion show them. Returns
// `option`.
CLI::Option* SuggestWords(CLI::Option* option, const std::string& label,
                          const std::vector<std::string>& words);

// What AddText, AddChoice and SuggestWords stored about the value of an option.
struct ValueWords {
  std::string label{};               // "FILE"; empty: only the words below are allowed
  std::vector<std::string> words{};  // choices or suggestions
};
ValueWords ValueWordsOf(const CLI::Option& option);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_OPTIONS_H_
