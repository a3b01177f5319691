#include "src/cli/reference/describe.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "kvxfer/backend_options.h"
#include "src/agent/engine/options_env.h"
#include "src/backends/libfabric/options.h"
#include "src/backends/loopback/options.h"
#include "src/backends/shm/options.h"
#include "src/backends/tcp/options.h"
#include "src/backends/ucx/options.h"
#include "src/backends/verbs/options.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/exit_status.h"
#include "src/cli/common/options.h"

namespace kvxfer::cli {
namespace {

// Breaks lines at spaces; a longer word has a line of its own.
std::string Wrapped(const std::string& text, size_t width) {
  std::string out;
  size_t used = 0;
  for (const absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const bool fits = used + 1 + word.size() <= width;
    if (used > 0) absl::StrAppend(&out, fits ? " " : "\n");
    used = used > 0 && fits ? used + 1 + word.size() : word.size();
    absl::StrAppend(&out, word);
  }
  return out;
}

// Shows one name for each option (and its short form), its value and its default. Synonyms, and
// which options exclude each other, are left out: the parser names those when they are given.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

std::string HelpFormatter::make_option_name(const CLI::Option* option,
                                            bool /*is_positional*/) const {
  return absl::StrJoin(Describe(*option).names, ",");
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  const OptionReference described = Describe(*option);
  if (!described.takes_value) return "";
  std::string text = absl::StrCat(" ", described.label);
  if (!described.default_value.empty()) absl::StrAppend(&text, "=", described.default_value);
  if (described.repeats) absl::StrAppend(&text, " ...");
  return text;
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  constexpr size_t kLineWidth = 100;
  const OptionReference described = Describe(*option);
  std::string text = described.help;
  // A label that is not the list of words hides them.
  const std::string words = absl::StrJoin(described.words, "|");
  if (!words.empty() && words != described.label) {
    absl::StrAppend(&text, ". Known: ", absl::StrJoin(described.words, ", "));
  }
  return Wrapped(text, kLineWidth - get_column_width());
}

// Text that roff prints as it is: "-" is a minus, and a line that begins with "." is no request.
std::string Roff(const std::string& text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (out.starts_with('.') || out.starts_with('\'')) out.insert(0, "\\&");
  return out;
}

std::string Bold(const std::string& text) { return absl::StrCat("\\fB", Roff(text), "\\fR"); }
std::string Italic(const std::string& text) { return absl::StrCat("\\fI", Roff(text), "\\fR"); }

// "a, b, c" of bold words.
std::string BoldList(const std::vector<std::string>& words) {
  return absl::StrJoin(words, ", ", [](std::string* out, const std::string& word) {
    absl::StrAppend(out, Bold(word));
  });
}

void AppendOption(const OptionReference& option, std::string& out) {
  absl::StrAppend(&out, ".TP\n",
                  option.argument ? Italic(option.names.front()) : BoldList(option.names));
  if (option.takes_value && !option.argument) absl::StrAppend(&out, " ", Italic(option.label));
  if (option.repeats) absl::StrAppend(&out, " ...");
  absl::StrAppend(&out, "\n", Roff(option.help), ".");
  if (!option.words.empty()) {
    absl::StrAppend(&out, " Known: ", BoldList(option.words), ".");
  }
  if (!option.default_value.empty()) {
    absl::StrAppend(&out, " Default: ", Bold(option.default_value), ".");
  }
  if (!option.synonyms.empty()) {
    absl::StrAppend(&out, " Also: ", BoldList(option.synonyms), ".");
  }
  out += "\n";
}

void AppendCommand(const CommandReference& command, std::string& out) {
  absl::StrAppend(&out, ".SS ", Roff(command.name), "\n.B kvxfer ", Roff(command.name),
                  "\n[\\fIoptions\\fR]");
  for (const OptionReference& option : command.options) {
    if (!option.argument) continue;
    const std::string name =
        absl::StrCat(Italic(option.names.front()), option.repeats ? " ..." : "");
    absl::StrAppend(&out, "\n", option.required ? name : absl::StrCat("[", name, "]"));
  }
  absl::StrAppend(&out, "\n.PP\n", Roff(command.help), ".\n");
  for (const OptionReference& option : command.options) {
    if (option.argument) AppendOption(option, out);
  }
  const std::vector<std::string> groups = command.Groups();
  for (const std::string& group : groups) {
    if (groups.size() > 1) absl::StrAppend(&out, ".PP\n", Roff(group), ":\n");
    for (const OptionReference& option : command.options) {
      if (!option.argument && option.group == group) AppendOption(option, out);
    }
  }
}

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

std::vector<std::string> OptionNames(const CommandReference& command) {
  std::vector<std::string> names;
  for (const OptionReference& option : command.options) {
    if (!option.argument) names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<CommandReference> DescribeSubcommands(const CLI::App& app) {
  std::vector<CommandReference> out;
  for (const CLI::App* command :
       app.get_subcommands([](const CLI::App* one) { return !one->get_group().empty(); })) {
    out.push_back(Describe(*command));
  }
  return out;
}

std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter() {
  return std::make_shared<HelpFormatter>();
}

std::string ManualPage(const CommandReference& root,
                       const std::vector<CommandReference>& commands) {
  std::string out = absl::StrCat(
      ".\\\" From `kvxfer man`.\n"
      ".TH KVXFER 1 \"\" \"kvxfer ",
      KVXFER_VERSION,
      "\" \"User Commands\"\n"
      ".SH NAME\n"
      "kvxfer \\- moves KV\\-cache blocks between LLM inference workers\n"
      ".SH SYNOPSIS\n"
      ".B kvxfer\n\\fIsubcommand\\fR [\\fIoptions\\fR]\n"
      ".SH DESCRIPTION\n"
      "Tries, measures and explains transfers of KV\\-cache blocks over shared memory, TCP, RDMA "
      "verbs, UCX, libfabric and CUDA IPC.\n"
      ".PP\n"
      "Sizes are powers of 1024: 4096, 4K, 64KiB, 1M, 2G. Times need a unit: 250us, 10ms, 1s, "
      "2m. Addresses are host:port, host or [IPv6 address]:port; the port is 7471 unless "
      "given.\n"
      ".SH OPTIONS\n");
  for (const OptionReference& option : root.options) AppendOption(option, out);
  out += ".SH SUBCOMMANDS\n";
  for (const CommandReference& command : commands) AppendCommand(command, out);
  out += ".SH EXIT STATUS\n";
  for (const ExitStatusText& status : kExitStatusTexts) {
    absl::StrAppend(&out, ".TP\n", Bold(std::to_string(static_cast<int>(status.status))), "\n",
                    Roff(status.text), "\n");
  }
  out +=
      ".SH ENVIRONMENT\n"
      "These variables set defaults of every agent; docs/cli.md describes each.\n.PP\n";
  absl::StrAppend(&out, BoldList(AllVariables()), "\n");
  return out;
}

std::vector<std::string> AllVariables() {
  std::vector<std::string> all = EnvironmentVariables();
  const auto add = [&all](const std::string& backend, const BackendOptions& section) {
    for (const auto& [key, value] : section) {
      all.push_back(absl::AsciiStrToUpper("kvxfer_" + backend + "_" + key));
    }
  };
  add("loopback", WriteOptions(loopback::LoopbackOptions()));
  add("shm", WriteOptions(shm::ShmOptions()));
  add("tcp", WriteOptions(tcp::TcpOptions()));
  add("verbs", WriteOptions(verbs::VerbsOptions()));
  add("ucx", WriteOptions(ucx::UcxOptions()));
  add("libfabric", WriteOptions(libfabric::LibfabricOptions()));
  return all;
}

void AddCompletion(CLI::App& app, Action& action) {
  const auto shell = std::make_shared<std::string>();
  CLI::App* command =
      AddCommand(app, action, "completion", "Prints a completion script for a shell",
                 [shell, &app] { return PrintReference(CompletionFor(*shell, app)); });
  AddChoice(command, "shell", *shell, {"bash", "zsh", "fish"}, "The shell")->required();
}

void AddMan(CLI::App& app, Action& action) {
  AddCommand(app, action, "man", "Prints the manual page, in roff", [&app] {
    return PrintReference(ManualPage(Describe(app), DescribeSubcommands(app)));
  });
}

}  // namespace kvxfer::cli
