// The command line as data, read from CLI11's objects: what help, shell completion and the manual
// page say. They all come from here, so that they cannot contradict the parser.
//
// Thread-safety: functions without state.

#ifndef KVXFER_CLI_REFERENCE_DESCRIBE_H_
#define KVXFER_CLI_REFERENCE_DESCRIBE_H_

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
class FormatterBase;
class Option;
}  // namespace CLI

namespace kvxfer::cli {

struct OptionReference {
  std::vector<std::string> names{};     // "-n", "--iters"; of an argument its one name, "server"
  std::vector<std::string> synonyms{};  // other spellings, as of perftest and nixlbench
  std::string group{};                  // heading in help
  bool argument = false;                // stands by its place in the line
  bool takes_value = false;
  bool repeats = false;  // may be given several times
  bool required = false;
  std::string label{};          // of the value: "N", "HND|NHD"; empty without one
  std::string default_value{};  // as it would be typed; empty: `help` says what holds
  std::string help{};
  std::vector<std::string> words{};  // choices or suggestions for the value
  bool files = false;                // the value may be the path of a file
  bool folders = false;
};

struct CommandReference {
  std::string name{};
  std::string help{};
  std::vector<OptionReference> options{};  // arguments too; in the order of declaration

  // The headings of `options`, without arguments, in their order.
  std::vector<std::string> Groups() const;
};

// Without what is hidden (an empty group).
OptionReference Describe(const CLI::Option& option);
CommandReference Describe(const CLI::App& command);
// The names of its options, without arguments.
std::vector<std::string> OptionNames(const CommandReference& command);
// The subcommands of `app`.
std::vector<CommandReference> DescribeSubcommands(const CLI::App& app);

// The layout of --help.
std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter();

// Scripts that complete subcommands, options and the words of their values. `commands` are the
// subcommands, `root` has the options before them.
std::string BashCompletion(const CommandReference& root,
                           const std::vector<CommandReference>& commands);
std::string ZshCompletion(const CommandReference& root,
                          const std::vector<CommandReference>& commands);
std::string FishCompletion(const CommandReference& root,
                           const std::vector<CommandReference>& commands);

// The manual page. // In roff, for man(1). The same input always gives the same text: there is no
// date in it.
std::string ManualPage(const CommandReference& root, const std::vector<CommandReference>& commands);

// The environment variables that kvxfer reads, for the manual page and the check of the docs: those
// of AgentOptions, then those of the backends in this repository.
std::vector<std::string> AllVariables();

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_REFERENCE_DESCRIBE_H_
