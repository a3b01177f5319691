// The command line as data, read from CLI11's objects: what help, shell completion and the manual
// page say. They all come from here, so that they cannot contradict the parser.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CLI_REFERENCE_DESCRIBE_H_
#define KVXFER_CLI_REFERENCE_DESCRIBE_H_

#include <string>
#include <vector>

namespace CLI {
class App;
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
// The subcommands of `app`.
std::vector<CommandReference> DescribeSubcommands(const CLI::App& app);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_REFERENCE_DESCRIBE_H_
