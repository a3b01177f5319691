#include "src/cli/reference/describe.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/options.h"

namespace kvxfer::cli {

std::vector<std::string> CommandReference::Groups() const {
  std::vector<std::string> groups;
  for (const OptionReference& option : options) {
    if (option.argument || std::ranges::find(groups, option.group) != groups.end()) continue;
    groups.push_back(option.group);
  }
  return groups;
}

OptionReference Describe(const CLI::Option& option) {
  OptionReference out{.group = option.get_group(),
                      .argument = option.get_positional(),
                      .takes_value = option.get_items_expected_max() > 0,
                      .repeats = option.get_items_expected_max() > 1,
                      .required = option.get_required(),
                      .default_value = option.get_default_str(),
                      .help = option.get_description()};
  if (out.argument) {
    out.names.push_back(option.get_name(/*positional=*/true));
  } else {
    for (const std::string& name : option.get_snames()) out.names.push_back("-" + name);
    const std::vector<std::string>& names = option.get_lnames();
    for (size_t i = 0; i < names.size(); ++i) {
      (i == 0 ? out.names : out.synonyms).push_back("--" + names[i]);
    }
  }
  if (!out.takes_value) return out;
  ValueWords words = ValueWordsOf(option);
  out.label = words.label.empty() ? absl::StrJoin(words.words, "|") : words.label;
  out.files = words.label.find("FILE") != std::string::npos;
  out.folders = words.label.find("FOLDER") != std::string::npos;
  out.words = std::move(words.words);
  return out;
}

CommandReference Describe(const CLI::App& command) {
  CommandReference out{.name = command.get_name(), .help = command.get_description()};
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_group().empty()) out.options.push_back(Describe(*option));
  }
  return out;
}

std::vector<CommandReference> DescribeSubcommands(const CLI::App& app) {
  std::vector<CommandReference> out;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    out.push_back(Describe(*command));
  }
  return out;
}

}  // namespace kvxfer::cli
