// The checks of `kvxfer doctor`: each is a small function over a view of the host, listed in a
// table.
//
// Each file of this folder has the checks of one subject, and their table. docs/doctor.md lists all
// checks.
//
// Thread-safety: one thread.

#ifndef KVXFER_CLI_DOCTOR_DOCTOR_H_
#define KVXFER_CLI_DOCTOR_DOCTOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/peer.h"
#include "kvxfer/types.h"
#include "src/backends/registry.h"
#include "src/cli/common/json_util.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"
#include "src/cuda/driver.h"

namespace kvxfer::cli {

// Access from one GPU to another: by kernels and copies of `from` to memory of `to`.
struct GpuLink {
  int from = 0;
  int to = 0;
  bool access = false;   // directly, not through the host
  bool atomics = false;  // all atomic operations of CUDA, as over NVLink
  int rank = -1;         // performance rank, 0 is best; -1: unknown
};

// What the CUDA driver reports to this process.
struct CudaState {
  bool asked = false;     // false: this is a view of another host
  absl::Status status{};  // why GPU memory cannot be used: Driver::Get's, or DeadlineExceeded
  int version = 0;        // 13000: CUDA 13.0
  std::string library{};  // the file of the driver; empty: none was loaded
  std::vector<cuda::Device> devices{};
  std::vector<GpuLink> links{};  // of each pair, in both directions
  // The result of pinning more host memory than the usual limit of locked memory.
  absl::Status pinned{};

  bool usable() const { return asked && status.ok(); }
  // The numbers of the devices for which `predicate` holds.
  std::vector<int> Where(absl::FunctionRef<bool(const cuda::Device&)> predicate) const;
};

// Loads and initialises the driver, which may take seconds, and creates a context on the first
// device for a moment.
CudaState AskCuda();
// The result of `ask`, or DeadlineExceeded if it takes longer. Its thread goes on then and may
// never end, so that nothing else may call the driver.
CudaState AskWithin(Duration longest, std::function<CudaState()> ask);

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

// A view of the host that this process runs on, with its permissions: opens device files, asks
// libraries for their versions, creates each backend once.
std::unique_ptr<SystemView> MakeLiveView(Topology topology);

// A view of the files below another root. Device files are judged by their mode: one that not every
// user may open counts as not accessible.
std::unique_ptr<SystemView> MakeTreeView(Sysfs files, Topology topology);

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
std::span<const Check> GpuChecks();       // driver, devices, peer access
std::span<const Check> GpuNicChecks();    // access to GPU memory by NICs
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

// All backends that kvxfer knows, and other plugins; also those that are not installed.
std::vector<BackendOrigin> AllBackends();
inline bool IsHere(const BackendOrigin& backend) {
  return backend.built_in || !backend.file.empty();
}

// An error of the backend without the backend's name, which may precede it twice; for reports that
// print the name anyway.
std::string WithoutName(std::string_view why, const std::string& backend);

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
// "cuda:0 cuda:1", shortened as by Names.
std::string GpuNames(const std::vector<int>& ordinals);
// Whether the device is a MIG instance, which is a part of a GPU.
bool IsInstance(const cuda::Device& device);
// The NVIDIA GPUs on the PCI bus, as indices into Topology::gpus.
std::vector<size_t> NvidiaGpus(const SystemView& view);
bool IsActiveInfiniBand(const RdmaPort& port);
// The indices of the ports for which `predicate` holds.
std::vector<size_t> PortsWhere(const Topology& topology,
                               absl::FunctionRef<bool(const RdmaPort&)> predicate);
bool IsActive(const RdmaPort& port);

// Whether /proc/self/status has this effective capability (linux/capability.h); empty: unknown.
std::optional<bool> HasCapability(const SystemView& view, int number);

// The middle of each name in `folder` that begins with `prefix` and has `suffix` behind it.
std::set<std::string> NamesBetween(const SystemView& view, const std::string& folder,
                                   const std::string& prefix, const std::string& suffix);

// --- `kvxfer doctor host:port`: tries each backend end to end with a `kvxfer serve`.

struct PeerCheckOptions {
  std::string backends{};  // --backend; empty: DefaultBackends()
  std::string listen{};    // --listen

  bool IsDefault() const { return backends.empty() && listen.empty(); }
};

// The result of trying one backend.
struct PeerPath {
  std::string backend{};
  bool reached = false;  // bytes went there and back and were compared
  // kWarning: reached, but not over every rail.
  Severity severity = Severity::kOk;
  std::string why{};  // why it does not reach the server, or its path
  std::string fix{};
  uint32_t rails = 0;
  std::vector<RailExplanation> each_rail{};
  double rtt_min_us = 0;  // a notified write of 64 bytes and its answer
  double rtt_p50_us = 0;
  double rtt_max_us = 0;
  double gbps = 0;  // of a short sample of writes, in Gb/s
  Json here{};      // Agent::Explain on this side while connected
  Json there{};     // the same on the server's side
};

struct PeerReport {
  std::string server{};
  std::string chosen{};  // the backend that transfers would take; empty: none
  std::vector<PeerPath> paths{};
};

// Unavailable: nothing answers there. InvalidArgument: a bad address, an unknown backend, or a
// server of another version. The report says what a backend lacks.
absl::StatusOr<PeerReport> CheckPeer(const std::string& server, const PeerCheckOptions& options);

// Makes `path` a warning if some of its rails are down.
void JudgeRails(PeerPath& path);

std::string PeerText(const PeerReport& report);
Json PeerJson(const PeerReport& report);
// Aborted if a backend has a problem, or no backend reaches the server. With `strict`, also if a
// backend has a warning.
absl::Status PeerStatus(const PeerReport& report, bool strict);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_DOCTOR_H_
