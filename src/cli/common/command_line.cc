#include "src/cli/common/command_line.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "src/cli/common/options.h"
#include "src/cli/reference/describe.h"

namespace kvxfer::cli {
namespace {

// Names that users of other tools and of older builds try, and what this program calls the same
// thing. Where a name is there twice, the first one that the subcommand has is meant.
constexpr auto kOtherNames = std::to_array<std::pair<const char*, const char*>>({
    {"--layout-src", "--prefill-layout"},
    {"--layout-dst", "--decode-layout"},
    {"--layout-prefill", "--prefill-layout"},
    {"--layout-decode", "--decode-layout"},
    {"--prefill-block", "--prefill-block-tokens"},
    {"--decode-block", "--decode-block-tokens"},
    {"--prefill-block-size", "--prefill-block-tokens"},
    {"--decode-block-size", "--decode-block-tokens"},
    {"--prefill-tensor-parallel-size", "--prefill-tp"},
    {"--decode-tensor-parallel-size", "--decode-tp"},
    {"--tensor-parallel-size", "--tp"},
    {"--block-size", "--block-sizes"},
    {"--block-size", "--block-tokens"},
    {"--count", "--iters"},
    {"--rounds", "--iters"},
    {"--packet-size", "--size"},
    {"--bytes", "--size"},
    {"--backends", "--backend"},
});

bool IsOption(std::string_view word) { return word.size() > 1 && word.front() == '-'; }

// "--modle=x" is one word; no option has a "=" in its name.
std::string NameIn(const std::string& word) { return word.substr(0, word.find('=')); }

// `where` follows the name: " before the subcommand".
std::string UnknownOption(const CLI::App& command, const std::string& word,
                          const char* where = "") {
  const std::string name = NameIn(word);
  const std::vector<std::string> known = OptionNames(Describe(command));
  const std::string unknown = absl::StrCat("unknown option '", name, "'", where);
  for (const auto& [other, ours] : kOtherNames) {
    if (name != other || std::ranges::find(known, ours) == known.end()) continue;
    return absl::StrCat(unknown, "; did you mean ", ours, "?");
  }
  return unknown + DidYouMean(name, known);
}

// `words` were not recognized before a subcommand, or there is no subcommand.
std::string WrongBeforeSubcommand(const CLI::App& app, const std::vector<std::string>& words) {
  const std::vector<std::string> known = NamesOf(DescribeSubcommands(app));
  if (words.empty()) return "a subcommand is missing; choose " + JoinOr(known);
  const std::string& word = words.front();
  if (IsOption(word)) return UnknownOption(app, word, " before the subcommand");
  return absl::StrCat("unknown subcommand '", word, "'", DidYouMeanOrChoose(word, known));
}

// Empty: the error is another one.
std::string FlagWithValue(const CLI::ParseError& error) {
  const std::string what = error.what();
  if (!absl::EndsWith(what, " was given a disallowed flag override")) return "";
  return absl::StrCat("--", what.substr(0, what.find(' ')), " takes no value");
}

// What CLI11 says of a value, in the words of the other messages. `last` is the last word typed.
std::string WrongValue(const CLI::ParseError& error, const std::string& last) {
  std::string what = error.what();
  const std::string name = what.substr(0, what.find(": "));
  if (std::string flag = FlagWithValue(error); !flag.empty()) return flag;
  if (absl::EndsWith(what, " missing") && absl::StrContains(what, " required ")) {
    return absl::StrCat(last, " needs a value");
  }
  const std::string received = " required but received ";
  if (const size_t at = what.find(received); at != std::string::npos) {
    return absl::StrCat(name, " is given ", what.substr(at + received.size()),
                        " times, and takes one value");
  }
  return what;
}

// An unknown option is named first: the word behind it was taken for an argument, and the parser
// complains of that.
std::string WrongInSubcommand(const CLI::App& command, const CLI::ParseError& error,
                              const std::string& last) {
  const std::vector<std::string> words = command.remaining();
  const auto option = std::ranges::find_if(words, IsOption);
  if (option != words.end()) return UnknownOption(command, *option);
  if (!words.empty()) return absl::StrCat("unexpected argument '", words.front(), "'");
  return WrongValue(error, last);
}

absl::Status WhatIsWrong(const CLI::App& app, const CLI::ParseError& error,
                         const std::string& last) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::vector<std::string> before = app.remaining();
  std::string help = "kvxfer --help";
  std::string wrong;
  if (chosen.empty() || !before.empty()) {
    wrong = FlagWithValue(error);
    if (wrong.empty()) wrong = WrongBeforeSubcommand(app, before);
  } else {
    const CLI::App& command = *chosen.front();
    help = absl::StrCat("kvxfer ", command.get_name(), " --help");
    wrong = absl::StrCat(command.get_name(), ": ", WrongInSubcommand(command, error, last));
  }
  return Invalid(wrong, " (see ", help, ")");
}

// The initial value of an option is its default, unless the option states another one.
void ShowDefaults(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0) {
      option->disable_flag_override();
      continue;
    }
    if (!option->get_default_str().empty()) continue;
    option->capture_default_str();
    // An empty list or text: the description states what holds then.
    const std::string shown = option->get_default_str();
    if (shown == "[]" || shown == "{}" || shown == "\"\"") option->default_str("");
  }
}

}  // namespace

CLI::App* AddCommand(CLI::App& app, Action& action, const std::string& name,
                     const std::string& help, Action run) {
  CLI::App* command = app.add_subcommand(name, help);
  command->callback([&action, run = std::move(run)] { action = run; });
  return command;
}

CommandLine::CommandLine() : app_("Moves KV-cache blocks between LLM inference workers.") {
  app_.name("kvxfer");
  app_.formatter(MakeHelpFormatter());  // of every subcommand too
  app_.set_version_flag("--version", KVXFER_VERSION);
  // For tests of documented commands that cannot run everywhere.
  app_.add_flag("--parse-only", parse_only_)->group("");
  app_.require_subcommand(1);
  AddDemo(app_, action_);
  AddServe(app_, action_);
  AddPing(app_, action_);
  AddBench(app_, action_);
  AddExplain(app_, action_);
  AddTopo(app_, action_);
  AddDoctor(app_, action_);
  AddBackends(app_, action_);
  AddCompletion(app_, action_);
  AddMan(app_, action_);
  AddDemoWorker(app_, action_);
  AddDemoRank(app_, action_);
  AddBenchWorker(app_, action_);
  ShowDefaults(app_);
  for (CLI::App* command : app_.get_subcommands({})) ShowDefaults(*command);
}

absl::StatusOr<Action> CommandLine::Parse(int argc, const char* const* argv) {
  const Action nothing = [] { return absl::OkStatus(); };
  // CLI11 reports by exception, which ends here.
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return WhatIsWrong(app_, error, argv[argc - 1]);
    app_.exit(error);  // --help, --version
    return nothing;
  }
  return parse_only_ ? nothing : action_;
}

}  // namespace kvxfer::cli
