#include "src/cli/common/shared_options.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "src/backends/registry.h"
#include "src/cli/common/kv_model.h"
#include "src/cli/common/memory_choice.h"
#include "src/cli/common/options.h"
#include "src/cli/topo/topology_fixture.h"

namespace kvxfer::cli {
namespace {

constexpr uint64_t kMaxTp = 256;
constexpr uint64_t kMaxBlockTokens = 4096;

}  // namespace

CLI::Option* AddBackend(CLI::App* app, std::string& value, const std::string& otherwise) {
  std::vector<std::string> names;
  for (const KnownBackend& backend : KnownBackends()) names.emplace_back(backend.name);
  return SuggestWords(
      AddText(app, "--backend", value, "",
              absl::StrCat("Backends to use, separated by commas; ^NAME leaves one out, "
                           "faulty:NAME injects faults (default: ",
                           otherwise, ")")),
      "NAMES", names);
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
  std::vector<std::string> names;
  for (const KvModel& model : KnownKvModels()) names.push_back(model.name);
  return SuggestWords(AddText(app, "--model", value, "",
                              absl::StrCat("Model, by name or by its config.json", help)),
                      "NAME|FILE", names);
}

void AddHost(CLI::App* app, std::string& fixture, std::string& root,
             std::vector<std::string>& fabrics) {
  std::vector<std::string> names;
  for (const BuiltinTopology& builtin : BuiltinTopologies()) names.emplace_back(builtin.name);
  SuggestWords(
      AddText(app, "--fixture", fixture, "",
              "Described host to look at, by name, or a folder as for --root (default: this host)"),
      "NAME|FOLDER", names);
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

}  // namespace kvxfer::cli
