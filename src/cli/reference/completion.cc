#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "src/cli/reference/describe.h"

namespace kvxfer::cli {
namespace {

// For a shell: in single quotes.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Words that can be typed as they are: not the N of "cuda:N".
std::vector<std::string> PlainWords(const OptionReference& option) {
  std::vector<std::string> words;
  for (const std::string& word : option.words) {
    if (!word.ends_with(":N")) words.push_back(word);
  }
  return words;
}

// The first sentence or clause, for a list of one line each.
std::string Short(const std::string& help) {
  const size_t end = std::min(help.find(" (default"), help.find(';'));
  return help.substr(0, end);
}

// --- bash ---------------------------------------------------------------------------------------

// Completes the value at the cursor.
std::string BashValue(const OptionReference& option) {
  const std::string words = absl::StrJoin(PlainWords(option), " ");
  const std::string paths = option.files ? " -f" : option.folders ? " -d" : "";
  if (words.empty() && paths.empty()) return "return";
  return absl::StrCat("COMPREPLY=($(compgen", paths, " -W ", Quoted(words),
                      " -- \"$current\")); return");
}

void AppendBashCommand(const CommandReference& command, std::string& out) {
  absl::StrAppend(&out, "    ", command.name, ")\n      case $previous in\n");
  std::vector<std::string> words = OptionNames(command);
  for (const OptionReference& option : command.options) {
    if (option.argument) {
      const std::vector<std::string> plain = PlainWords(option);
      words.insert(words.end(), plain.begin(), plain.end());
    } else if (option.takes_value) {
      std::vector<std::string> names = option.names;
      names.insert(names.end(), option.synonyms.begin(), option.synonyms.end());
      absl::StrAppend(&out, "        ", absl::StrJoin(names, "|"), ") ", BashValue(option), ";;\n");
    }
  }
  absl::StrAppend(&out, "      esac\n      words=", Quoted(absl::StrJoin(words, " ")), ";;\n");
}

// --- zsh ----------------------------------------------------------------------------------------

std::string ZshText(const std::string& text) {
  return absl::StrReplaceAll(text, {{"[", "\\["}, {"]", "\\]"}, {":", "\\:"}, {"'", "'\\''"}});
}

// ":label:action" of a value.
std::string ZshValue(const OptionReference& option) {
  std::vector<std::string> actions;
  const std::vector<std::string> words = PlainWords(option);
  std::string action;
  if (!words.empty()) {
    action = absl::StrCat("(", absl::StrReplaceAll(absl::StrJoin(words, " "), {{":", "\\:"}}), ")");
  }
  if (option.files) {
    action = words.empty()
                 ? "_files"
                 : absl::StrCat("{_alternative \"words:word:", action, "\" \"files:file:_files\"}");
  } else if (option.folders) {
    action = words.empty() ? "_files -/"
                           : absl::StrCat("{_alternative \"words:word:", action,
                                          "\" \"folders:folder:_files -/\"}");
  }
  return absl::StrCat(":", ZshText(option.label), ":", action.empty() ? " " : action);
}

void AppendZshCommand(const CommandReference& command, std::string& out) {
  absl::StrAppend(&out, "        ", command.name, ")\n          _arguments");
  for (const OptionReference& option : command.options) {
    if (option.argument) {
      absl::StrAppend(&out, " \\\n            '", option.repeats ? "*" : "", ZshValue(option), "'");
      continue;
    }
    for (const std::string& name : option.names) {
      absl::StrAppend(&out, " \\\n            '", option.repeats ? "*" : "", name, "[",
                      ZshText(Short(option.help)), "]", option.takes_value ? ZshValue(option) : "",
                      "'");
    }
  }
  absl::StrAppend(&out, ";;\n");
}

// --- fish ---------------------------------------------------------------------------------------

std::string FishQuoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// " -x -a 'a b'" of a value, or of the value of an argument.
std::string FishValue(const OptionReference& option) {
  const std::string words = absl::StrJoin(PlainWords(option), " ");
  std::string out;
  if (!option.argument) out = option.files || option.folders ? " -r" : " -x";
  if (option.files || option.folders) out += " -F";
  if (!words.empty()) absl::StrAppend(&out, " -a ", FishQuoted(words));
  return out;
}

void AppendFishOptions(const CommandReference& command, const std::string& condition,
                       std::string& out) {
  for (const OptionReference& option : command.options) {
    const std::string line = absl::StrCat("complete -c kvxfer -n ", FishQuoted(condition));
    const std::string help = absl::StrCat(" -d ", FishQuoted(Short(option.help)), "\n");
    if (option.argument) {
      const std::string value = FishValue(option);
      if (!value.empty()) absl::StrAppend(&out, line, value, help);
      continue;
    }
    std::string names;
    for (const std::string& name : option.names) {
      const bool is_long = name.starts_with("--");
      absl::StrAppend(&names, is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1));
    }
    absl::StrAppend(&out, line, names, option.takes_value ? FishValue(option) : "", help);
  }
}

}  // namespace

std::string BashCompletion(const CommandReference& root,
                           const std::vector<CommandReference>& commands) {
  std::vector<std::string> first = OptionNames(root);
  for (const CommandReference& command : commands) first.push_back(command.name);
  std::string out = absl::StrCat(
      "# Completion of kvxfer for bash, from `kvxfer completion bash`.\n"
      "_kvxfer() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}\n"
      "  local command='' words='' i\n"
      "  if [[ $current == = ]]; then current=''\n"
      "  elif [[ $previous == = ]]; then previous=${COMP_WORDS[COMP_CWORD - 2]}; fi\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    if [[ ${COMP_WORDS[i]} != -* ]]; then command=${COMP_WORDS[i]}; break; fi\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n"
      "    '') words=",
      Quoted(absl::StrJoin(first, " ")), ";;\n");
  for (const CommandReference& command : commands) AppendBashCommand(command, out);
  absl::StrAppend(&out,
                  "  esac\n"
                  "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                  "}\n"
                  "complete -F _kvxfer kvxfer\n");
  return out;
}

std::string ZshCompletion(const CommandReference& root,
                          const std::vector<CommandReference>& commands) {
  std::string out =
      "#compdef kvxfer\n"
      "# Completion of kvxfer for zsh, from `kvxfer completion zsh`.\n"
      "_kvxfer() {\n"
      "  local state line\n"
      "  local -a commands\n"
      "  commands=(\n";
  for (const CommandReference& command : commands) {
    absl::StrAppend(&out, "    '", command.name, ":", ZshText(Short(command.help)), "'\n");
  }
  absl::StrAppend(&out, "  )\n  _arguments -C");
  for (const OptionReference& option : root.options) {
    for (const std::string& name : option.names) {
      absl::StrAppend(&out, " \\\n    '", name, "[", ZshText(Short(option.help)), "]'");
    }
  }
  absl::StrAppend(&out,
                  " \\\n    '1: :->command' \\\n    '*:: :->arguments'\n"
                  "  case $state in\n"
                  "    command) _describe -t commands 'subcommand' commands;;\n"
                  "    arguments)\n"
                  "      case $line[1] in\n");
  for (const CommandReference& command : commands) AppendZshCommand(command, out);
  absl::StrAppend(&out,
                  "      esac;;\n"
                  "  esac\n"
                  "}\n"
                  "if [[ $funcstack[1] == _kvxfer ]]; then _kvxfer \"$@\"; else compdef _kvxfer "
                  "kvxfer; fi\n");
  return out;
}

std::string FishCompletion(const CommandReference& root,
                           const std::vector<CommandReference>& commands) {
  constexpr const char* kFirst = "__fish_use_subcommand";
  std::string out =
      "# Completion of kvxfer for fish, from `kvxfer completion fish`.\n"
      "complete -c kvxfer -f\n";
  AppendFishOptions(root, kFirst, out);
  for (const CommandReference& command : commands) {
    absl::StrAppend(&out, "complete -c kvxfer -n ", kFirst, " -a ", command.name, " -d ",
                    FishQuoted(Short(command.help)), "\n");
  }
  for (const CommandReference& command : commands) {
    AppendFishOptions(command, "__fish_seen_subcommand_from " + command.name, out);
  }
  return out;
}

}  // namespace kvxfer::cli
