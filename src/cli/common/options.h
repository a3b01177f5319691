// Command-line options with units. A value that does not parse is a usage error that says why.
#ifndef KVXFER_CLI_COMMON_OPTIONS_H_
#define KVXFER_CLI_COMMON_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/types.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvxfer::cli {

// Of --listen of the clients of `kvxfer serve`.
inline constexpr const char* kClientListenHelp =
    "host or host:port where the server's answers come in (default: where the server is reached "
    "from)";

// InvalidArgument that names the option, and what it may be.
absl::Status CheckRange(const char* name, uint64_t value, uint64_t least, uint64_t most);
absl::Status CheckAboveZero(const char* name, Duration value);
absl::Status CheckOneOf(const char* name, const std::string& value,
                        const std::vector<std::string>& allowed);

// Each leaves `value`, the default, as it is unless the option is given, and shows it in --help.
// `value` must live as long as `app`.
// A number above or at zero, or of `double` any: "--tokens '-5': write ...".
CLI::Option* AddNumber(CLI::App* app, const std::string& name, uint64_t& value,
                       const std::string& help);
// Not set unless given; `help` says what is taken then.
CLI::Option* AddNumber(CLI::App* app, const std::string& name, std::optional<uint64_t>& value,
                       const std::string& help);
CLI::Option* AddNumber(CLI::App* app, const std::string& name, double& value,
                       const std::string& help);
CLI::Option* AddSize(CLI::App* app, const std::string& name, uint64_t& value,
                     const std::string& help);
// `shown_default` may be empty: then there is none.
CLI::Option* AddSizes(CLI::App* app, const std::string& name, std::vector<uint64_t>& value,
                      const std::string& shown_default, const std::string& help);
CLI::Option* AddDuration(CLI::App* app, const std::string& name, Duration& value,
                         const std::string& help);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_OPTIONS_H_
