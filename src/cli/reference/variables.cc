#include "src/cli/reference/variables.h"

#include "absl/strings/ascii.h"
#include "kvxfer/backend_options.h"
#include "src/agent/engine/options_env.h"
#include "src/backends/libfabric/options.h"
#include "src/backends/loopback/options.h"
#include "src/backends/shm/options.h"
#include "src/backends/tcp/options.h"
#include "src/backends/ucx/options.h"
#include "src/backends/verbs/options.h"

namespace kvxfer::cli {

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

}  // namespace kvxfer::cli
