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
#include "src/backends/registry.h"
#include "src/cli/common/errors.h"

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

// The names of some things that have one.
template <typename Things>
std::vector<std::string> NamesOf(const Things& things) {
  std::vector<std::string> names;
  for (const auto& thing : things) names.emplace_back(thing.name);
  return names;
}

// What AddText, AddChoice and SuggestWords stored about the value of an option.
struct ValueWords {
  std::string label{};               // "FILE"; empty: only the words below are allowed
  std::vector<std::string> words{};  // choices or suggestions
};
ValueWords ValueWordsOf(const CLI::Option& option);

// --- Options that several subcommands have: each has one spelling, one default and one help text.

// --backend. `otherwise` says what an empty value means.
inline constexpr const char* kFastestBackend = "the fastest that both sides have";
CLI::Option* AddBackend(CLI::App* app, std::string& value,
                        const std::string& otherwise = kFastestBackend);
// --listen of a client of `kvxfer serve`.
CLI::Option* AddListen(CLI::App* app, std::string& value);
// --memory. `help` says which memory it is.
CLI::Option* AddMemory(CLI::App* app, std::string& value, const std::string& help);
// --model. `help` ends the description.
CLI::Option* AddModel(CLI::App* app, std::string& value, const std::string& help = "");
// --fixture, --root and --fabric: which host to look at.
void AddHost(CLI::App* app, std::string& fixture, std::string& root,
             std::vector<std::string>& fabrics);
// --json.
CLI::Option* AddJson(CLI::App* app, bool& value);

// The shape of one side of a transfer between two instances.
struct KvSide {
  std::string name{};  // "prefill" or "decode"
  uint64_t tp = 1;
  std::optional<uint64_t> block_tokens{};  // empty: as --block-tokens
  std::string layout = "HND";              // what the vLLM connector asks for; or "NHD"
};

// --<name>-tp, --<name>-block-tokens and --<name>-layout, in that order.
std::vector<CLI::Option*> AddKvSide(CLI::App* app, KvSide& side);
// InvalidArgument names the option that is out of range.
absl::Status CheckKvSide(const KvSide& side);

// --- What to say about a word that is not known, and about names of backends.

// "; did you mean tcp?", or nothing if no word of `known` is near `word` (NearestWord). Upper and
// lower case count as equal.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

// DidYouMean, or if that says nothing "; choose rate, streaming or migration".
std::string DidYouMeanOrChoose(std::string_view word, const std::vector<std::string>& known);

// "rate, streaming or migration".
std::string JoinOr(const std::vector<std::string>& words);

// "tcp" for "faulty:tcp".
std::string WithoutDecorator(std::string_view name);

// InvalidArgument: none of `all` is called `name`; says which name was probably meant.
absl::Status UnknownBackend(std::string_view name, const std::vector<BackendOrigin>& all);

// OK if each of `names` is one of `all`, decorated ("faulty:tcp") or left out ("^tcp") or not.
absl::Status CheckBackendNames(const std::vector<std::string>& names,
                               const std::vector<BackendOrigin>& all);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_OPTIONS_H_
