// What is said of words that are wrong, and that help shows every default.

#include "src/cli/common/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "src/core/base/nearest_word.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// What is wrong with this command line; empty where it would run.
std::string Wrong(std::vector<const char*> words) {
  words.insert(words.begin(), "kvxfer");
  CommandLine line;
  const auto action = line.Parse(static_cast<int>(words.size()), words.data());
  return std::string(action.status().message());
}

TEST(CommandLine, NamesASubcommandThatItDoesNotKnow) {
  EXPECT_THAT(Wrong({"frob"}), AllOf(StartsWith("unknown subcommand 'frob': choose demo, serve, "),
                                     HasSubstr("backends (see kvxfer --help)")));
  EXPECT_EQ(Wrong({"bnech", "--op", "read"}),
            "unknown subcommand 'bnech'; did you mean bench? (see kvxfer --help)");
  EXPECT_EQ(Wrong({"Ping"}), "unknown subcommand 'Ping'; did you mean ping? (see kvxfer --help)");
  EXPECT_THAT(Wrong({"frob", "ping"}), StartsWith("unknown subcommand 'frob'"));
  EXPECT_THAT(Wrong({}), StartsWith("there is no subcommand: choose demo, "));
  EXPECT_EQ(Wrong({"--json", "ping"}),
            "unknown option '--json' before the subcommand (see kvxfer --help)");
}

TEST(CommandLine, KeepsQuietAboutWhatOnlyItsOwnProcessesAreToldToDo) {
  EXPECT_THAT(Wrong({"frob"}), testing::Not(HasSubstr("demo-worker")));
  EXPECT_THAT(Wrong({"demo-workre"}), StartsWith("unknown subcommand 'demo-workre': choose"));
  EXPECT_EQ(Wrong({"demo", "--corupt"}),
            "demo: unknown option '--corupt' (see kvxfer demo --help)");
}

TEST(CommandLine, NamesAnOptionThatItDoesNotKnowAsItWasTyped) {
  EXPECT_EQ(Wrong({"demo", "--modle", "x"}),
            "demo: unknown option '--modle'; did you mean --model? (see kvxfer demo --help)");
  EXPECT_EQ(Wrong({"demo", "--modle=x"}),
            "demo: unknown option '--modle'; did you mean --model? (see kvxfer demo --help)");
  EXPECT_EQ(Wrong({"ping", "-x"}), "ping: unknown option '-x' (see kvxfer ping --help)");
  // What stands behind it would be the server.
  EXPECT_EQ(Wrong({"bench", "--layout-prefill", "NHD", "--prefill-tp", "2", "--decode-tp", "2"}),
            "bench: unknown option '--layout-prefill' (see kvxfer bench --help)");
  EXPECT_THAT(Wrong({"bench", "--prefil-tp", "2", "--csv", "--json"}),
              StartsWith("bench: unknown option '--prefil-tp'; did you mean --prefill-tp?"));
}

TEST(CommandLine, NamesAnArgumentThatIsOneTooMany) {
  EXPECT_EQ(Wrong({"ping", "a", "b", "c"}),
            "ping: unexpected argument 'b' (see kvxfer ping --help)");
  EXPECT_EQ(Wrong({"topo", "dgx-h100"}),
            "topo: unexpected argument 'dgx-h100' (see kvxfer topo --help)");
}

TEST(CommandLine, NamesAChoiceAsItWasTyped) {
  EXPECT_THAT(Wrong({"bench", "--op", "ERASE"}),
              AllOf(StartsWith("bench: "), HasSubstr("--op"), HasSubstr("ERASE")));
  EXPECT_EQ(Wrong({"bench", "--op", "READ"}), "");
  EXPECT_THAT(Wrong({"demo", "--layout-decode", "NDH"}), HasSubstr("NDH"));
  EXPECT_THAT(Wrong({"explain"}), HasSubstr("server"));
}

// Calls visit(subcommand, option) for what a user may type.
template <typename Visit>
void ForEachOption(CommandLine& line, Visit visit) {
  for (CLI::App* command : line.app().get_subcommands({})) {
    if (command->get_group().empty()) continue;
    for (CLI::Option* option : command->get_options()) {
      if (!option->get_group().empty()) visit(*command, *option);
    }
  }
}

TEST(CommandLine, ShowsTheDefaultOfEveryOption) {
  CommandLine line;
  int seen = 0;
  ForEachOption(line, [&](const CLI::App& command, const CLI::Option& option) {
    if (option.get_items_expected_max() == 0 || option.get_required()) return;  // a flag: not given
    ++seen;
    EXPECT_TRUE(!option.get_default_str().empty() ||
                option.get_description().find("default") != std::string::npos)
        << command.get_name() << ' ' << option.get_name() << ": " << option.get_description();
  });
  EXPECT_GT(seen, 50);
}

TEST(CommandLine, NamesANumberThatIsNone) {
  CommandLine line;
  int seen = 0;
  ForEachOption(line, [&](const CLI::App& command, const CLI::Option& option) {
    if (option.get_type_name().find('N') != 0) return;
    ++seen;
    const std::string name = "--" + option.get_lnames().front();
    for (const char* text : {"-5", "5x", "99999999999999999999", "1.5", "0x10", ""}) {
      const std::string typed = name + "=" + text;
      EXPECT_THAT(Wrong({command.get_name().c_str(), typed.c_str()}),
                  AllOf(StartsWith(command.get_name() + ": "), HasSubstr(name), HasSubstr(text)))
          << typed;
    }
  });
  EXPECT_GT(seen, 20);
}

// Numbers, sizes and times are read by functions of ours, which say what was typed.
TEST(CommandLine, ReadsNoNumberByTheParsersOwnConversion) {
  CommandLine line;
  ForEachOption(line, [](const CLI::App& command, const CLI::Option& option) {
    for (const char* type : {"INT", "UINT", "FLOAT"}) {
      EXPECT_FALSE(option.get_type_name().starts_with(type))
          << command.get_name() << ' ' << option.get_name();
    }
  });
}

TEST(NearestWord, IsTheOneThatTheFewestChangesMake) {
  const std::vector<std::string> known = {"--tokens", "--tp", "--trace", "--total"};
  EXPECT_EQ(NearestWord("--tokesn", known), "--tokens");
  EXPECT_EQ(NearestWord("--token", known), "--tokens");
  EXPECT_EQ(NearestWord("--ttrace", known), "--trace");
  EXPECT_EQ(NearestWord("--totel", known), "--total");
  EXPECT_EQ(NearestWord("--warm-up", known), "");
  EXPECT_EQ(NearestWord("", known), "");
  EXPECT_EQ(NearestWord("x", {}), "");
}

}  // namespace
}  // namespace kvxfer::cli
