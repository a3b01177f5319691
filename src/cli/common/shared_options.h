// Options that several subcommands have: each has one spelling, one default and one help text.
// Like those of options.h, they write into values that must live as long as `app`.
#ifndef KVXFER_CLI_COMMON_SHARED_OPTIONS_H_
#define KVXFER_CLI_COMMON_SHARED_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvxfer::cli {

// --backend. `otherwise` says what an empty value means.
inline constexpr const char* kFastestBackend = "the fastest that both sides have";
CLI::Option* AddBackend(CLI::App* app, std::string& value,
                        const std::string& otherwise = kFastestBackend);
// --listen of a client of `kvxfer serve`.
CLI::Option* AddListen(CLI::App* app, std::string& value);
// --memory. `help` says which memory it is.
CLI::Option* AddMemory(CLI::App* app, std::string& value, const std::string& help);
// --model. `help` ends the description.
CLI::Option* AddModel(CLI::App* app, std::string& value, const std::string& help = "");
// --fixture, --root and --fabric: which host to look at.
void AddHost(CLI::App* app, std::string& fixture, std::string& root,
             std::vector<std::string>& fabrics);
// --json.
CLI::Option* AddJson(CLI::App* app, bool& value);

// The shape of one side of a transfer between two instances.
struct KvSide {
  std::string name{};  // "prefill" or "decode"
  uint64_t tp = 1;
  std::optional<uint64_t> block_tokens{};  // empty: as --block-tokens
  std::string layout = "HND";              // what the vLLM connector asks for; or "NHD"
};

// --<name>-tp, --<name>-block-tokens and --<name>-layout, in that order.
std::vector<CLI::Option*> AddKvSide(CLI::App* app, KvSide& side);
// InvalidArgument names the option that is out of range.
absl::Status CheckKvSide(const KvSide& side);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_SHARED_OPTIONS_H_
