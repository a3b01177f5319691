// `kvxfer completion` and `kvxfer man`: what shells and man(1) are given, from the declared
// options.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/common/options.h"
#include "src/cli/reference/completion.h"
#include "src/cli/reference/describe.h"
#include "src/cli/reference/man.h"

namespace kvxfer::cli {
namespace {

absl::Status PrintReference(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

std::string CompletionFor(const std::string& shell, const CLI::App& app) {
  const CommandReference root = Describe(app);
  const std::vector<CommandReference> commands = DescribeSubcommands(app);
  if (shell == "zsh") return ZshCompletion(root, commands);
  if (shell == "fish") return FishCompletion(root, commands);
  return BashCompletion(root, commands);
}

}  // namespace

void AddCompletion(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("completion", "Prints a completion script for a shell");
  const auto shell = std::make_shared<std::string>();
  AddChoice(command, "shell", *shell, {"bash", "zsh", "fish"}, "The shell")->required();
  command->callback([shell, &app, &action] {
    action = [shell, &app] { return PrintReference(CompletionFor(*shell, app)); };
  });
}

void AddMan(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("man", "Prints the manual page, in roff");
  command->callback([&app, &action] {
    action = [&app] { return PrintReference(ManualPage(Describe(app), DescribeSubcommands(app))); };
  });
}

}  // namespace kvxfer::cli
