// Messages about wrong words, and the defaults that help shows.

#include "src/cli/common/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/core/base/nearest_word.h"

namespace kvxfer::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The error message for this command line; empty if it would run.
std::string Wrong(std::vector<const char*> words) {
  words.insert(words.begin(), "kvxfer");
  CommandLine line;
  const auto action = line.Parse(static_cast<int>(words.size()), words.data());
  return std::string(action.status().message());
}

TEST(CommandLine, NamesAnUnknownSubcommand) {
  EXPECT_THAT(Wrong({"frob"}), AllOf(StartsWith("unknown subcommand 'frob'; choose demo, serve, "),
                                     HasSubstr(" or man (see kvxfer --help)")));
  EXPECT_EQ(Wrong({"bnech", "--op", "read"}),
            "unknown subcommand 'bnech'; did you mean bench? (see kvxfer --help)");
  EXPECT_EQ(Wrong({"Ping"}), "unknown subcommand 'Ping'; did you mean ping? (see kvxfer --help)");
  EXPECT_THAT(Wrong({"frob", "ping"}), StartsWith("unknown subcommand 'frob'"));
  EXPECT_THAT(Wrong({}), StartsWith("a subcommand is missing; choose demo, "));
  EXPECT_EQ(Wrong({"--json", "ping"}),
            "unknown option '--json' before the subcommand (see kvxfer --help)");
  EXPECT_EQ(Wrong({"--verison"}),
            "unknown option '--verison' before the subcommand; did you mean --version? "
            "(see kvxfer --help)");
}

TEST(CommandLine, DoesNotNameInternalSubcommandsAndOptions) {
  EXPECT_THAT(Wrong({"frob"}), ::testing::Not(HasSubstr("demo-worker")));
  EXPECT_THAT(Wrong({"demo-workre"}), StartsWith("unknown subcommand 'demo-workre'; choose"));
  EXPECT_EQ(Wrong({"demo", "--corupt"}),
            "demo: unknown option '--corupt' (see kvxfer demo --help)");
}

TEST(CommandLine, NamesAnUnknownOption) {
  EXPECT_EQ(Wrong({"demo", "--modle", "x"}),
            "demo: unknown option '--modle'; did you mean --model? (see kvxfer demo --help)");
  EXPECT_EQ(Wrong({"demo", "--modle=x"}),
            "demo: unknown option '--modle'; did you mean --model? (see kvxfer demo --help)");
  EXPECT_EQ(Wrong({"ping", "-x"}), "ping: unknown option '-x' (see kvxfer ping --help)");
  EXPECT_THAT(Wrong({"bench", "--prefil-tp", "2", "--csv", "--json"}),
              StartsWith("bench: unknown option '--prefil-tp'; did you mean --prefill-tp?"));
}

// Each subcommand names the nearest of its own options.
TEST(CommandLine, NamesTheNearestOptionOfEverySubcommand) {
  for (const auto& [command, typed, meant] :
       std::vector<std::array<const char*, 3>>{{"demo", "--request", "--requests"},
                                               {"serve", "--lisen", "--listen"},
                                               {"ping", "--intervall", "--interval"},
                                               {"bench", "--bidirectionnal", "--bidirectional"},
                                               {"explain", "--memroy", "--memory"},
                                               {"topo", "--fixtures", "--fixture"},
                                               {"doctor", "--strcit", "--strict"},
                                               {"backends", "--jsno", "--json"},
                                               {"completion", "--hepl", "--help"},
                                               {"man", "--hlep", "--help"}}) {
    EXPECT_EQ(Wrong({command, typed}),
              absl::StrCat(command, ": unknown option '", typed, "'; did you mean ", meant,
                           "? (see kvxfer ", command, " --help)"));
  }
}

// Names of other tools, and of this program's past, lead to the present ones.
TEST(CommandLine, KnowsOtherNamesOfOptions) {
  for (const auto& [command, typed, meant] : std::vector<std::array<const char*, 3>>{
           {"bench", "--layout-src", "--prefill-layout"},
           {"bench", "--layout-dst", "--decode-layout"},
           {"bench", "--layout-prefill", "--prefill-layout"},
           {"demo", "--layout-prefill", "--prefill-layout"},
           {"demo", "--layout-decode", "--decode-layout"},
           {"demo", "--prefill-block", "--prefill-block-tokens"},
           {"bench", "--decode-block", "--decode-block-tokens"},
           {"demo", "--block-size", "--block-tokens"},
           {"bench", "--block-size", "--block-sizes"},
           {"demo", "--tensor-parallel-size", "--tp"},
           {"ping", "--count", "--iters"},
           {"ping", "--warm-up", "--warmup"},
           {"bench", "--warm-up", "--warmup"},
           {"bench", "--rounds", "--iters"},
           {"explain", "--backends", "--backend"}}) {
    // The word behind the option would be the server.
    EXPECT_THAT(Wrong({command, typed, "2"}),
                StartsWith(absl::StrCat(command, ": unknown option '", typed, "'; did you mean ",
                                        meant, "?")));
  }
}

TEST(CommandLine, NamesAnArgumentThatIsOneTooMany) {
  EXPECT_EQ(Wrong({"ping", "a", "b", "c"}),
            "ping: unexpected argument 'b' (see kvxfer ping --help)");
  EXPECT_EQ(Wrong({"topo", "dgx-h100"}),
            "topo: unexpected argument 'dgx-h100' (see kvxfer topo --help)");
  EXPECT_THAT(Wrong({"explain"}), HasSubstr("server"));
}

TEST(CommandLine, NamesAValueThatIsNoChoice) {
  EXPECT_EQ(Wrong({"bench", "--op", "ERASE"}),
            "bench: --op: 'ERASE': choose write or read (see kvxfer bench --help)");
  EXPECT_EQ(Wrong({"bench", "--op", "READ"}), "");
  EXPECT_EQ(Wrong({"demo", "--decode-layout", "nhd"}), "");
  EXPECT_EQ(Wrong({"bench", "--scheme", "many-to-one"}),
            "bench: --scheme: 'many-to-one': choose manytoone or onetomany; did you mean "
            "manytoone? (see kvxfer bench --help)");
  EXPECT_EQ(Wrong({"completion", "bahs"}),
            "completion: shell: 'bahs': choose bash, zsh or fish; did you mean bash? "
            "(see kvxfer completion --help)");
}

TEST(CommandLine, NamesAFlagWithAValueAndAnOptionWithout) {
  EXPECT_EQ(Wrong({"bench", "--csv=yes"}), "bench: --csv takes no value (see kvxfer bench --help)");
  EXPECT_EQ(Wrong({"bench", "--op"}), "bench: --op needs a value (see kvxfer bench --help)");
  EXPECT_EQ(Wrong({"ping", "-n"}), "ping: -n needs a value (see kvxfer ping --help)");
  EXPECT_EQ(Wrong({"ping", "--iters", "2", "--iters", "3"}),
            "ping: --iters is given 2 times, and takes one value (see kvxfer ping --help)");
}

TEST(CommandLine, NamesOptionsThatExcludeEachOther) {
  EXPECT_EQ(Wrong({"bench", "--prefill-tp", "2", "--csv"}),
            "bench: --prefill-tp excludes --csv (see kvxfer bench --help)");
  EXPECT_EQ(Wrong({"bench", "--decode-layout", "NHD", "host7"}),
            "bench: --decode-layout excludes server (see kvxfer bench --help)");
  EXPECT_EQ(Wrong({"bench", "--prefill-tp", "2", "--block-tokens", "32", "--json"}), "");
}

TEST(CommandLine, CanOnlyParse) {
  EXPECT_EQ(Wrong({"--parse-only", "bench", "--op", "read"}), "");
  EXPECT_THAT(Wrong({"--parse-only", "bench", "--po", "read"}),
              StartsWith("bench: unknown option"));
  CommandLine line;
  const std::array words = {"kvxfer", "--parse-only", "explain", "no-such-host.invalid"};
  const auto action = line.Parse(static_cast<int>(words.size()), words.data());
  ASSERT_TRUE(action.ok()) << action.status();
  EXPECT_TRUE((*action)().ok());
}

// Calls visit(subcommand, option) for each that is not hidden.
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
    if (option.get_items_expected_max() == 0 || option.get_required()) return;  // a flag
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
    if (option.get_type_name() != "N") return;
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

// An option that several subcommands have means the same in each: it takes the same values and has
// the same default.
TEST(CommandLine, GivesAnOptionTheSameDefaultEverywhere) {
  // These depend on what the subcommand does.
  const std::set<std::string> exceptions = {
      "--backend: doctor",  // tries each backend
      "--backend: serve",   // offers every backend
      "--backend: bench",   // with two instances another default
      "--listen: serve",    // listens for clients
      "--memory: explain",  // none: moves no data
      "--model: bench",     // none: raw blocks
      "--timeout: ping",    // of one small write
      "--iters: bench",     // depends on what is measured
      "--warmup: bench",    // likewise
      "--requests: bench",  // likewise
  };
  CommandLine line;
  std::map<std::string, std::pair<std::string, std::string>> seen;  // name: value, subcommand
  std::set<std::string> unused = exceptions;
  ForEachOption(line, [&](const CLI::App& command, const CLI::Option& option) {
    if (option.get_lnames().empty()) return;
    const std::string name = "--" + option.get_lnames().front();
    const std::string here = absl::StrCat(name, ": ", command.get_name());
    if (unused.erase(here) > 0 || exceptions.contains(here)) return;
    const std::string& help = option.get_description();
    const size_t stated = help.find("(default: ");
    const std::string value = absl::StrCat(option.get_type_name(), "=", option.get_default_str(),
                                           " ", option.get_snames().size(),
                                           stated == std::string::npos ? "" : help.substr(stated));
    const auto [it, first] = seen.try_emplace(name, value, command.get_name());
    EXPECT_EQ(value, it->second.first)
        << name << " of " << command.get_name() << " and " << it->second.second;
  });
  EXPECT_THAT(unused, ::testing::IsEmpty());
  EXPECT_GT(seen.size(), 40u);
}

// Functions of this program read numbers, sizes and times: their messages quote what was typed.
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
