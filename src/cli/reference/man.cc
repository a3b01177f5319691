#include "src/cli/reference/man.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "src/cli/common/exit_status.h"
#include "src/cli/reference/variables.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

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

}  // namespace

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

}  // namespace kvxfer::cli
