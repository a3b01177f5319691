#include "src/cli/common/command_line.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/core/base/nearest_word.h"

namespace kvxfer::cli {
namespace {

bool IsOption(std::string_view word) { return word.size() > 1 && word.front() == '-'; }

// "--modle=x" is typed in one word, and no option has a "=" in its name.
std::string NameIn(const std::string& word) { return word.substr(0, word.find('=')); }

std::string DidYouMean(const std::string& word, const std::vector<std::string>& known) {
  const std::string nearest = NearestWord(word, known);
  return nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?");
}

std::vector<std::string> SubcommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> OptionNames(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

// Of words before a subcommand, and where there is none.
std::string WrongBeforeSubcommand(const CLI::App& app, const std::vector<std::string>& words) {
  const std::vector<std::string> known = SubcommandNames(app);
  const std::string choose = absl::StrCat("choose ", absl::StrJoin(known, ", "));
  if (words.empty()) return "there is no subcommand: " + choose;
  const std::string& word = words.front();
  if (IsOption(word)) {
    return absl::StrCat("unknown option '", NameIn(word), "' before the subcommand");
  }
  const std::string meant = DidYouMean(word, known);
  return absl::StrCat("unknown subcommand '", word, "'", meant.empty() ? ": " + choose : meant);
}

// An option that is not known comes first: what stands behind it was taken for something else, of
// which the parser would complain.
std::string WrongInSubcommand(const CLI::App& command, const CLI::ParseError& error) {
  const std::vector<std::string> words = command.remaining();
  const auto option = std::ranges::find_if(words, IsOption);
  if (option != words.end()) {
    const std::string name = NameIn(*option);
    return absl::StrCat("unknown option '", name, "'", DidYouMean(name, OptionNames(command)));
  }
  if (!words.empty()) return absl::StrCat("unexpected argument '", words.front(), "'");
  return error.what();
}

absl::Status WhatIsWrong(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::vector<std::string> before = app.remaining();
  std::string help = "kvxfer --help";
  std::string wrong;
  if (chosen.empty() || !before.empty()) {
    wrong = WrongBeforeSubcommand(app, before);
  } else {
    const CLI::App& command = *chosen.front();
    help = absl::StrCat("kvxfer ", command.get_name(), " --help");
    wrong = absl::StrCat(command.get_name(), ": ", WrongInSubcommand(command, error));
  }
  return absl::InvalidArgumentError(absl::StrCat(wrong, " (see ", help, ")"));
}

// Whatever an option begins with is its default, but where it says another one.
void ShowDefaults(CLI::App& command) {
  for (CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0 || !option->get_default_str().empty()) continue;
    option->capture_default_str();
    // Of lists that begin empty, and of what is not set.
    const std::string shown = option->get_default_str();
    if (shown == "[]" || shown == "{}" || shown == "\"\"") option->default_str("");
  }
}

}  // namespace

CommandLine::CommandLine() : app_("Moves KV-cache blocks between LLM inference workers.") {
  app_.name("kvxfer");
  app_.set_version_flag("--version", KVXFER_VERSION);
  app_.require_subcommand(1);
  AddDemo(app_, action_);
  AddServe(app_, action_);
  AddPing(app_, action_);
  AddBench(app_, action_);
  AddExplain(app_, action_);
  AddTopo(app_, action_);
  AddDoctor(app_, action_);
  AddBackends(app_, action_);
  AddDemoWorker(app_, action_);
  AddDemoRank(app_, action_);
  AddBenchWorker(app_, action_);
  for (CLI::App* command : app_.get_subcommands({})) ShowDefaults(*command);
}

absl::StatusOr<Action> CommandLine::Parse(int argc, const char* const* argv) {
  // CLI11 reports by exception; it goes no further than here.
  try {
    app_.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) return WhatIsWrong(app_, error);
    app_.exit(error);  // --help, --version
    return [] { return absl::OkStatus(); };
  }
  return action_;
}

}  // namespace kvxfer::cli
