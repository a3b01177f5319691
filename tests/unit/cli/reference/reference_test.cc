// The manual page and the completion scripts: generated from the declared options.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "src/cli/common/command_line.h"
#include "src/cli/reference/describe.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// A program with one subcommand.
struct Sample {
  CommandReference root{.name = "kvxfer", .help = "", .options = {}};
  std::vector<CommandReference> commands{{.name = "move",
                                          .help = "Moves it; slowly",
                                          .options = {{.names = {"-n", "--number"},
                                                       .synonyms = {"--num"},
                                                       .group = "Options",
                                                       .takes_value = true,
                                                       .label = "N",
                                                       .default_value = "7",
                                                       .help = "It's a number: [N] (default: 7)"},
                                                      {.names = {"--kind"},
                                                       .group = "Options",
                                                       .takes_value = true,
                                                       .label = "KIND",
                                                       .help = "Kind",
                                                       .words = {"cuda:N", "host"}}}}};
};

TEST(Describe, ReadsTheDeclaredOptions) {
  CommandLine line;
  const std::vector<CommandReference> commands = DescribeSubcommands(line.app());
  size_t options = 0;
  for (const CommandReference& command : commands) {
    EXPECT_NE(command.name, "demo-worker");
    for (const OptionReference& option : command.options) {
      ++options;
      EXPECT_FALSE(option.names.empty());
      EXPECT_NE(option.help, "") << command.name << ' ' << option.names.front();
      EXPECT_EQ(option.takes_value, !option.label.empty()) << option.names.front();
      EXPECT_THAT(option.names, Not(Contains("--corrupt")));
    }
  }
  EXPECT_GT(options, 100u);
}

TEST(ManualPage, HasNameLabelDefaultAndSynonyms) {
  const Sample sample;
  const std::string page = ManualPage(sample.root, sample.commands);
  EXPECT_THAT(page, AllOf(HasSubstr(".SS move\n"),
                          HasSubstr("\\fB\\-n\\fR, \\fB\\-\\-number\\fR \\fIN\\fR\n"),
                          HasSubstr("Default: \\fB7\\fR."), HasSubstr("Also: \\fB\\-\\-num\\fR.")));
}

TEST(Completion, QuotesForEachShell) {
  const Sample sample;
  EXPECT_THAT(BashCompletion(sample.root, sample.commands),
              AllOf(HasSubstr("-n|--number|--num) return;;"), HasSubstr("-W 'host' ")));
  EXPECT_THAT(ZshCompletion(sample.root, sample.commands),
              AllOf(HasSubstr("'move:Moves it'"),
                    HasSubstr("'--number[It'\\''s a number\\: \\[N\\]]:N: '")));
  EXPECT_THAT(FishCompletion(sample.root, sample.commands),
              HasSubstr("-s n -l number -x -d 'It\\'s a number: [N]'\n"));
}

TEST(Completion, NamesEveryOption) {
  CommandLine line;
  const CommandReference root = Describe(line.app());
  const std::vector<CommandReference> commands = DescribeSubcommands(line.app());
  const std::string bash = BashCompletion(root, commands);
  const std::string zsh = ZshCompletion(root, commands);
  const std::string fish = FishCompletion(root, commands);
  for (const CommandReference& command : commands) {
    for (const OptionReference& option : command.options) {
      if (option.argument) continue;
      const std::string& name = option.names.back();
      EXPECT_NE(bash.find(name), std::string::npos) << name;
      EXPECT_NE(zsh.find(name + "["), std::string::npos) << name;
      EXPECT_NE(fish.find(" -l " + name.substr(2)), std::string::npos) << name;
    }
  }
}

}  // namespace
}  // namespace kvxfer::cli
