#include "src/cli/common/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "src/backends/registry.h"
#include "src/cli/common/kv_model.h"
#include "src/cli/common/units.h"
#include "src/cli/topo/topology_fixture.h"
#include "src/core/base/nearest_word.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

// An option's type name holds its words: "HND|NHD", or with a label "NAME {tcp|shm}".
constexpr const char* kBetweenWords = "|";
constexpr const char* kBeforeWords = " {";
constexpr const char* kBehindWords = "}";

// The first long name: "--threads" of "-t,--threads,--num-threads".
std::string LongName(const std::string& names) {
  for (const absl::string_view name : absl::StrSplit(names, ',')) {
    if (absl::StartsWith(name, "--")) return std::string(name);
  }
  return names;
}

// CLI11 takes errors by exception only; CommandLine::Parse turns them into a Status.
template <typename Value, typename Parse>
CLI::Option* Add(CLI::App* app, const std::string& name, Value& value,
                 const std::string& shown_default, const std::string& help, Parse parse) {
  CLI::Option* option = app->add_option_function<std::string>(
      name,
      [name = LongName(name), &value, parse](const std::string& text) {
        auto parsed = parse(text);
        if (!parsed.ok()) {
          throw CLI::ValidationError(name, std::string(parsed.status().message()));
        }
        value = std::move(*parsed);
      },
      help);
  return option->default_str(shown_default);
}

// CLI11's own conversion turns "-5" into 18446744073709551611, and a number that is too large into
// the largest one.
absl::StatusOr<uint64_t> ParseWhole(std::string_view text) {
  uint64_t number = 0;
  const bool digits = std::ranges::all_of(text, absl::ascii_isdigit);
  if (digits && absl::SimpleAtoi(ToAbsl(text), &number)) return number;
  return Invalid("'", ToAbsl(text),
                 "': write a whole number that is not below zero and fits 64 bits");
}

absl::StatusOr<double> ParseFraction(std::string_view text) {
  double number = 0;
  if (absl::SimpleAtod(ToAbsl(text), &number) && std::isfinite(number)) return number;
  return Invalid("'", ToAbsl(text), "': write a number, such as 2 or 1.5");
}

constexpr uint64_t kMaxTp = 256;
constexpr uint64_t kMaxBlockTokens = 4096;

}  // namespace

absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Invalid(name, " must be from ", least, " to ", most, ", not ", value);
}

absl::Status CheckAboveZero(const char* name, Duration value) {
  if (value > Duration::zero()) return absl::OkStatus();
  return Invalid(name, " must be above zero");
}

CLI::Option* AddText(CLI::App* app, const std::string& name, std::string& value,
                     const std::string& label, const std::string& help) {
  return app->add_option(name, value, help)->default_str(value)->type_name(label);
}

CLI::Option* AddChecked(CLI::App* app, const std::string& name, std::string& value,
                        const std::string& label, const std::string& help,
                        absl::Status (*check)(std::string_view text)) {
  const auto parse = [check](std::string_view text) -> absl::StatusOr<std::string> {
    if (absl::Status status = check(text); !status.ok()) return status;
    return std::string(text);
  };
  return Add(app, name, value, value, help, parse)->type_name(label);
}

CLI::Option* AddChoice(CLI::App* app, const std::string& name, std::string& value,
                       const std::vector<std::string>& choices, const std::string& help) {
  const auto parse = [choices](std::string_view text) -> absl::StatusOr<std::string> {
    for (const std::string& choice : choices) {
      if (absl::EqualsIgnoreCase(choice, ToAbsl(text))) return choice;
    }
    return Invalid("'", ToAbsl(text), "': choose ", JoinOr(choices), DidYouMean(text, choices));
  };
  return Add(app, name, value, value, help, parse)
      ->type_name(absl::StrJoin(choices, kBetweenWords));
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, uint64_t& value,
                       const std::string& help) {
  return Add(app, name, value, absl::StrCat(value), help, &ParseWhole)->type_name("N");
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<uint64_t>& value,
                       const std::string& help) {
  return Add(app, name, value, "", help, &ParseWhole)->type_name("N");
}

CLI::Option* AddNumber(CLI::App* app, const std::string& name, double& value,
                       const std::string& help) {
  return Add(app, name, value, absl::StrCat(value), help, &ParseFraction)->type_name("X");
}

CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t& value,
                     const std::string& help) {
  return Add(app, name, value, FormatSize(value), help, &ParseSize)->type_name("SIZE");
}

CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>& value,
                      const std::string& shown_default, const std::string& help) {
  value = ParseSizes(shown_default).value_or(std::vector<uint64_t>{});
  return Add(app, name, value, shown_default, help, &ParseSizes)->type_name("SIZES");
}

CLI::Option* AddDuration(CLI::App* app, const std::string& name, Duration& value,
                         const std::string& help) {
  return Add(app, name, value, FormatDuration(value), help, &ParseDuration)->type_name("TIME");
}

CLI::Option* SuggestWords(CLI::Option* option, const std::string& label,
                          const std::vector<std::string>& words) {
  return option->type_name(
      absl::StrCat(label, kBeforeWords, absl::StrJoin(words, kBetweenWords), kBehindWords));
}

ValueWords ValueWordsOf(const CLI::Option& option) {
  const std::string name = option.get_type_name();
  const size_t open = name.find(kBeforeWords);
  if (open != std::string::npos) {
    const size_t begin = open + std::string_view(kBeforeWords).size();
    const std::string words = name.substr(begin, name.rfind(kBehindWords) - begin);
    return {.label = name.substr(0, open), .words = absl::StrSplit(words, kBetweenWords)};
  }
  if (name.find(kBetweenWords) == std::string::npos) return {.label = name};
  return {.words = absl::StrSplit(name, kBetweenWords)};
}

CLI::Option* AddBackend(CLI::App* app, std::string& value, const std::string& otherwise) {
  return SuggestWords(
      AddText(app, "--backend", value, "",
              absl::StrCat("Backends to use, separated by commas; ^NAME leaves one out, "
                           "faulty:NAME injects faults (default: ",
                           otherwise, ")")),
      "NAMES", NamesOf(KnownBackends()));
}

CLI::Option* AddListen(CLI::App* app, std::string& value) {
  return AddText(app, "--listen", value, "HOST[:PORT]",
                 "Address of this host that the server connects to (default: the address from "
                 "which the server is reached)");
}

CLI::Option* AddMemory(CLI::App* app, std::string& value, const std::string& help) {
  const auto check = [](std::string_view text) { return ParseMemorySides(text).status(); };
  return SuggestWords(AddChecked(app, "--memory", value, "", help, check), "KIND[,KIND]",
                      MemoryWords());
}

CLI::Option* AddModel(CLI::App* app, std::string& value, const std::string& help) {
  return SuggestWords(AddText(app, "--model", value, "",
                              absl::StrCat("Model, by name or by its config.json", help)),
                      "NAME|FILE", NamesOf(KnownKvModels()));
}

void AddHost(CLI::App* app, std::string& fixture, std::string& root,
             std::vector<std::string>& fabrics) {
  SuggestWords(
      AddText(app, "--fixture", fixture, "",
              "Described host to look at, by name, or a folder as for --root (default: this host)"),
      "NAME|FOLDER", NamesOf(BuiltinTopologies()));
  AddText(app, "--root", root, "FOLDER",
          "Folder to look at that holds another host's sys/ and proc/ (default: /)");
  app->add_option("--fabric", fabrics,
                  "Names the fabric of some ports; may be repeated (default: fabrics as found)")
      ->type_name("NAME=PORTS")
      ->allow_extra_args(false);
}

CLI::Option* AddJson(CLI::App* app, bool& value) {
  return app->add_flag("--json", value, "Prints one JSON document in place of text");
}

std::vector<CLI::Option*> AddKvSide(CLI::App* app, KvSide& side) {
  const std::string prefix = absl::StrCat("--", side.name, "-");
  const std::string instance = absl::StrCat(" of the ", side.name, " instance");
  return {AddNumber(app, prefix + "tp", side.tp, "Tensor-parallel ranks" + instance),
          AddNumber(app, prefix + "block-tokens", side.block_tokens,
                    "Tokens in one block" + instance + " (default: --block-tokens)"),
          AddChoice(app, prefix + "layout", side.layout, {"HND", "NHD"},
                    "Layout of a block" + instance + ": HND head by head, NHD token by token")};
}

absl::Status CheckKvSide(const KvSide& side) {
  const std::string prefix = absl::StrCat("--", side.name, "-");
  absl::Status status = CheckRange((prefix + "tp").c_str(), side.tp, 1, kMaxTp);
  status.Update(CheckRange((prefix + "block-tokens").c_str(), side.block_tokens.value_or(1), 1,
                           kMaxBlockTokens));
  return status;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& known) {
  const std::string typed = absl::AsciiStrToLower(ToAbsl(word));
  std::vector<std::string> lower;
  lower.reserve(known.size());
  for (const std::string& one : known) lower.push_back(absl::AsciiStrToLower(one));
  const std::string nearest = NearestWord(typed, lower);
  for (size_t i = 0; i < known.size() && !nearest.empty(); ++i) {
    if (lower[i] == nearest) return absl::StrCat("; did you mean ", known[i], "?");
  }
  return "";
}

std::string DidYouMeanOrChoose(std::string_view word, const std::vector<std::string>& known) {
  std::string nearest = DidYouMean(word, known);
  return nearest.empty() ? absl::StrCat("; choose ", JoinOr(known)) : nearest;
}

std::string JoinOr(const std::vector<std::string>& words) {
  if (words.size() < 2) return absl::StrJoin(words, "");
  return absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ", words.back());
}

std::string WithoutDecorator(std::string_view name) {
  constexpr std::string_view kFaulty = "faulty:";
  if (name.starts_with(kFaulty)) name.remove_prefix(kFaulty.size());
  return std::string(name);
}

absl::Status UnknownBackend(std::string_view name, const std::vector<BackendOrigin>& all) {
  return Invalid("no backend '", ToAbsl(name), "'", DidYouMeanOrChoose(name, NamesOf(all)));
}

absl::Status CheckBackendNames(const std::vector<std::string>& names,
                               const std::vector<BackendOrigin>& all) {
  for (const std::string& name : names) {
    const std::string_view typed = name;
    const std::string plain = WithoutDecorator(typed.substr(typed.starts_with('^') ? 1 : 0));
    if (std::ranges::find(all, plain, &BackendOrigin::name) == all.end()) {
      return UnknownBackend(plain, all);
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli
