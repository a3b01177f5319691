// The checks of `kvxfer doctor`: each is a small function over a view of the host, listed in a
// table.
//
// Each file of this folder has the checks of one subject, and their table. docs/doctor.md lists all
// checks.
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

// The state of a backend on this host.
struct BackendState {
  std::string name{};
  bool usable = false;
  std::string why{};  // why it is not usable
};

// What checks read: files below a root, and facts that are in no file.
class SystemView {
 public:
  SystemView(Sysfs files, Topology topology)
      : files_(std::move(files)), topology_(std::move(topology)) {}
  virtual ~SystemView() = default;

  const Sysfs& files() const { return files_; }
  const Topology& topology() const { return topology_; }

  // Whether the kernel has this version or a later one. An unreadable version counts as old.
  bool KernelAtLeast(int major, int minor) const;
  // OK if this process may open the device file for reading and writing. NotFound: there is no such
  // file.
  virtual absl::Status MayOpen(const std::string& path) const = 0;
  // The size of the file system at `path`; empty: unknown.
  virtual std::optional<uint64_t> FilesystemBytes(const std::string& path) const = 0;
  // The version that a library reports; empty: it reports none, or must not be loaded.
  virtual std::string LibraryVersion(const std::string& soname) const = 0;
  // Empty if this is not a view of the host that this process runs on.
  virtual std::vector<BackendState> Backends() const = 0;
  // The same result each time.
  virtual const CudaState& Cuda() const = 0;

 private:
  Sysfs files_;
  Topology topology_;
};

// In ascending order of severity.
enum class Severity { kNotApplicable, kOk, kWarning, kProblem };

struct Finding {
  Severity severity = Severity::kOk;
  std::string what{};  // what was found: "mlx5_3 is down (Polling)"
  std::string why{};   // what that means for transfers; for kWarning and kProblem
  std::string fix{};   // a command that fixes it; for kWarning and kProblem
};

using Findings = std::vector<Finding>;

struct Check {
  const char* name;                         // "port-state"
  const char* reads;                        // the files or calls that it reads
  Findings (*run)(const SystemView& view);  // returns at least one finding
};

// The tables, in the order in which they are printed.
std::span<const Check> DeviceChecks();    // RDMA devices and their firmware, functions
std::span<const Check> PortChecks();      // state, link, rate, LID, GIDs
std::span<const Check> FabricChecks();    // relations between ports
std::span<const Check> RightsChecks();    // limits, capabilities, device files
std::span<const Check> MemoryChecks();    // huge pages, /dev/shm
std::span<const Check> GpuChecks();       // driver, devices, peer access, access by NICs
std::span<const Check> SoftwareChecks();  // same host, libraries, backends

struct CheckResult {
  std::string family{};
  const Check* check = nullptr;
  Findings findings{};
  Severity severity = Severity::kOk;  // the worst of `findings`
};

// Runs every check of every table.
std::vector<CheckResult> RunChecks(const SystemView& view);

const char* ToString(Severity severity);  // "n/a", "ok", "warning", "problem"

// One line for each check, then how to fix problems and warnings, and a count.
std::string DoctorText(const std::vector<CheckResult>& results);
Json DoctorJson(const std::vector<CheckResult>& results);

// Aborted, with the number of problems, if there are any. With `strict`, warnings count as well.
absl::Status DoctorStatus(const std::vector<CheckResult>& results, bool strict);

// --- Helpers for the checks ---------------------------------------------------------------------

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
// `bad`, or Ok(`good`) if `bad` is empty.
inline Findings OrOk(const Findings& bad, std::string good) {
  return bad.empty() ? Ok(std::move(good)) : bad;
}
inline void Append(Findings& to, Findings more) {
  for (Finding& finding : more) to.push_back(std::move(finding));
}

// "mlx5_0 mlx5_1"; of more than eight names, the first eight and the number of the others.
std::string Names(const std::vector<std::string>& names);
// The names of the devices of these ports, which are indices.
std::string PortNames(const Topology& topology, const std::vector<size_t>& ports);
// The path of a library after following links (".../libibverbs.so.1.14.44.0"); empty: not
// installed.
std::string FindLibrary(const SystemView& view, const std::string& soname);
// Whether this is a container with its own pid namespace, in which peers on this host are
// invisible.
bool HasOwnProcesses(const SystemView& view);
bool IsActiveInfiniBand(const RdmaPort& port);
// The indices of the ports for which `predicate` holds.
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
