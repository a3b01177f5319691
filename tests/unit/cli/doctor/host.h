// Hosts for the tests of doctor's checks: healthy hosts from a description, with changes.
#ifndef KVXFER_TESTS_UNIT_CLI_DOCTOR_HOST_H_
#define KVXFER_TESTS_UNIT_CLI_DOCTOR_HOST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {

// A host from a description, with the facts that no file has.
struct Host {
  Json description;
  std::vector<std::string> fabrics{};
  std::set<std::string> denied{};    // device files
  std::set<std::string> gone{};      // device files
  std::vector<std::string> links{};  // "from=to"
  uint64_t shm_bytes = uint64_t{8} << 30;
  std::vector<BackendState> backends{{.name = "tcp", .usable = true}};
  CudaState cuda{};

  Json& nic(size_t i) { return description["nics"][i]; }
  Json& gpu(size_t i) { return description["gpus"][i]; }
  Json& file(const std::string& path) { return description["files"][path]; }
  void Without(const std::string& path) { description["files"].erase(path); }
};

// Null, with a test failure, if it cannot be created.
std::unique_ptr<SystemView> ViewOf(const Host& host);

inline constexpr const char* kLibraries = "/usr/lib/x86_64-linux-gnu/";

// Two ConnectX-7 and two GPUs, configured well.
Host WellHost();
// The same over Ethernet.
Host RoceHost();
Host EfaHost();
// A virtual function of a parent that only its host sees.
Host PodHost();
// Neither NICs nor GPUs.
Host BareHost();

// One change, the check that finds it, and words of its finding.
struct Case {
  const char* check;
  Severity severity;
  Host (*host)();
  std::function<void(Host&)> change;
  const char* says;
};
// The result of the check `name`, which must be there.
const CheckResult& ResultOf(const std::vector<CheckResult>& results, const std::string& name);

std::vector<Case> GpuCases();  // gpu_test.cc

}  // namespace kvxfer::cli

#endif  // KVXFER_TESTS_UNIT_CLI_DOCTOR_HOST_H_
