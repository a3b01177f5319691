// The checks of `kvxfer doctor`: each a small function in a table, over a view of the host.
//
// A check is written down in one of the files of this folder, by what it concerns, and is in the table
// there. docs/doctor.md lists them all.
//
// Thread-safety: one thread.
#ifndef KVXFER_CLI_DOCTOR_DOCTOR_H_
#define KVXFER_CLI_DOCTOR_DOCTOR_H_

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "src/cli/common/json_util.h"
#include "src/cli/doctor/gpu.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

// One of kvxfer's backends, as this host has it.
struct BackendState {
  std::string name{};
  bool usable = false;
  std::string why{};  // why not
};

// What checks look at: files below a root, and what no file tells.
class SystemView {
 public:
  SystemView(Sysfs files, Topology topology)
      : files_(std::move(files)), topology_(std::move(topology)) {}
  virtual ~SystemView() = default;

  const Sysfs& files() const { return files_; }
  const Topology& topology() const { return topology_; }

  // Whether the kernel is of this version or later. One that cannot be read counts as old.
  bool KernelAtLeast(int major, int minor) const;
  // Whether this process may open the device file for reading and writing; NotFound where there is
  // none.
  virtual absl::Status MayOpen(const std::string& path) const = 0;
  // Size of the file system at `path`; empty: not told.
  virtual std::optional<uint64_t> FilesystemBytes(const std::string& path) const = 0;
  // What a library says its version is; empty: it does not, or is not to be loaded.
  virtual std::string LibraryVersion(const std::string& soname) const = 0;
  // Empty where the view is not of the host that this process runs on.
  virtual std::vector<BackendState> Backends() const = 0;
  // The same each time.
  virtual const CudaState& Cuda() const = 0;

 private:
  Sysfs files_;
  Topology topology_;
};

// From good to bad.
enum class Severity { kNotApplicable, kOk, kWarning, kProblem };

struct Finding {
  Severity severity = Severity::kOk;
  std::string what{};  // what is there: "mlx5_3 is down (Polling)"
  std::string why{};   // what that means for transfers; of kWarning and kProblem
  std::string fix{};  // the command that mends it; of kWarning and kProblem
};

using Findings = std::vector<Finding>;

struct Check {
  const char* name;                         // "port-state"
  const char* reads;                        // the files or calls it looks at
  Findings (*run)(const SystemView& view);  // at least one
};

// The tables, in the order in which they are printed.
std::span<const Check> DeviceChecks();    // RDMA devices and their firmware, functions
std::span<const Check> PortChecks();      // state, link, rate, LID, GIDs
std::span<const Check> FabricChecks();    // what ports have to do with each other
std::span<const Check> RightsChecks();    // limits, capabilities, device files
std::span<const Check> MemoryChecks();    // huge pages, /dev/shm
std::span<const Check> GpuChecks();       // driver, devices, peers, what NICs may do with them
std::span<const Check> SoftwareChecks();  // same host, libraries, backends

struct CheckResult {
  std::string family{};
  const Check* check = nullptr;
  Findings findings{};
  Severity severity = Severity::kOk;  // the worst of `findings`
};

// Every check of every table.
std::vector<CheckResult> RunChecks(const SystemView& view);

const char* ToString(Severity severity);  // "n/a", "ok", "warning", "problem"

// One line a check, then what to do about warnings and problems, problems last, and a count.
std::string DoctorText(const std::vector<CheckResult>& results);
Json DoctorJson(const std::vector<CheckResult>& results);

// Aborted, with the number of problems, where there are any; `strict`: or warnings.
absl::Status DoctorStatus(const std::vector<CheckResult>& results, bool strict);

// --- For the checks -----------------------------------------------------------------------------

inline Findings Ok(std::string what) { return {{Severity::kOk, std::move(what), "", ""}}; }
inline Findings NotApplicable(std::string what) {
  return {{Severity::kNotApplicable, std::move(what), "", ""}};
}
inline Findings Warning(std::string what, std::string why, std::string fix) {
  return {{Severity::kWarning, std::move(what), std::move(why), std::move(fix)}};
}
inline Findings Problem(std::string what, std::string why, std::string fix) {
  return {{Severity::kProblem, std::move(what), std::move(why), std::move(fix)}};
}
// `bad`, or Ok(`good`) where there is none.
inline Findings OrOk(const Findings& bad, std::string good) {
  return bad.empty() ? Ok(std::move(good)) : bad;
}
inline void Append(Findings& to, Findings more) {
  for (Finding& finding : more) to.push_back(std::move(finding));
}

// "mlx5_0 mlx5_1", at most eight of them and how many more.
std::string Names(const std::vector<std::string>& names);
// Names of the devices of these ports (indices).
std::string PortNames(const Topology& topology, const std::vector<size_t>& ports);
// File name of a library, links followed ("libibverbs.so.1.14.44.0"); empty: not installed.
std::string FindLibrary(const SystemView& view, const std::string& soname);
// A container with namespaces of its own, in which peers on this host are not seen.
bool HasOwnProcesses(const SystemView& view);
bool IsActiveInfiniBand(const RdmaPort& port);
// Ports with these properties, as indices.
template <typename Predicate>
std::vector<size_t> PortsWhere(const Topology& topology, Predicate predicate) {
  std::vector<size_t> ports;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    if (predicate(topology.ports[i], topology.DeviceOf(topology.ports[i]))) ports.push_back(i);
  }
  return ports;
}

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_DOCTOR_H_
