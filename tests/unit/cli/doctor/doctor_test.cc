// Every check of `kvxfer doctor`, over hosts where it finds something and hosts where it does not.
// A host is a healthy host with one change.

#include "src/cli/doctor/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "src/cli/topo/sysfs_tree.h"
#include "tests/unit/cli/doctor/host.h"

namespace kvxfer::cli {
namespace {

using ::testing::HasSubstr;

std::vector<Case> DeviceCases() {
  return {
      {"devices", Severity::kProblem, &BareHost,
       [](Host& h) {
         h.file("/sys/bus/pci/devices/0000:3c:00.0/vendor") = "0x15b3";
         h.file("/sys/bus/pci/devices/0000:3c:00.0/class") = "0x020700";
       },
       "modprobe mlx5_ib"},
      {"devices", Severity::kProblem, &BareHost,
       [](Host& h) {
         h.file("/sys/bus/pci/devices/0000:10:1b.0/vendor") = "0x1d0f";
         h.file("/sys/bus/pci/devices/0000:10:1b.0/device") = "0xefa1";
       },
       "modprobe efa"},
      {"firmware", Severity::kWarning, &WellHost,
       [](Host& h) { h.nic(1)["firmware"] = "28.36.1010"; }, "28.36.1010 on mlx5_1"},
      {"functions", Severity::kWarning, &WellHost,
       [](Host& h) {
         h.nic(0)["vfs"] = {{"count", 1}, {"first", 2}, {"lid", 9}, {"guid", "0:0:0:7"}};
       },
       "beside their parents mlx5_0"},
      {"pci-link", Severity::kWarning, &WellHost,
       [](Host& h) { h.nic(1)["current_link_speed"] = "16.0 GT/s PCIe"; }, "16 GT/s x16"},
      {"pci-link", Severity::kWarning, &WellHost,
       [](Host& h) { h.nic(0)["current_link_width"] = "8"; }, "lspci -vv -s 0000:3c:00.0"},
  };
}

std::vector<Case> PortCases() {
  return {
      {"port-state", Severity::kWarning, &WellHost,
       [](Host& h) {
         h.nic(1).update({{"state", "1: DOWN"}, {"physical", "2: Polling"}});
       },
       "mlx5_1: down (Polling)"},
      {"port-state", Severity::kProblem, &WellHost,
       [](Host& h) { h.description["nic_defaults"]["state"] = "1: DOWN"; },
       "mlx5_0 mlx5_1: down (Disabled)"},
      {"port-state", Severity::kProblem, &WellHost,
       [](Host& h) {
         h.nic(0).update({{"state", "2: INIT"}, {"physical", "5: LinkUp"}});
       },
       "subnet manager"},
      {"link-layer", Severity::kWarning, &WellHost, [](Host& h) { h.nic(1)["link"] = "Ethernet"; },
       "InfiniBand on mlx5_0; Ethernet on mlx5_1"},
      {"link-layer", Severity::kWarning, &WellHost,
       [](Host& h) { h.description["nic_defaults"]["link"] = "Avian"; }, "unknown on mlx5_0"},
      {"rate", Severity::kWarning, &WellHost,
       [](Host& h) { h.nic(1)["rate"] = "200 Gb/sec (2X NDR)"; },
       "mlx5_1: 200 Gb/sec (2X NDR), of up to 400 Gb/s"},
      {"rate", Severity::kWarning, &EfaHost,
       [](Host& h) { h.nic(1)["rate"] = "25 Gb/sec (1X EDR)"; }, "of up to 100 Gb/s"},
      {"lid", Severity::kProblem, &WellHost, [](Host& h) { h.nic(1)["lid"] = 0; },
       "no LID on mlx5_1"},
      {"lid", Severity::kProblem, &WellHost, [](Host& h) { h.nic(0)["lid"] = 0xffff; },
       "no LID on mlx5_0"},
      {"sm-lid", Severity::kProblem, &WellHost, [](Host& h) { h.nic(0)["sm_lid"] = 0; },
       "no subnet manager seen by mlx5_0"},
      {"gids", Severity::kProblem, &WellHost, [](Host& h) { h.nic(0)["gids"] = Json::array(); },
       "mlx5_0: no GID"},
      {"gids", Severity::kProblem, &RoceHost, [](Host& h) { h.nic(0)["gids"].erase(1); },
       "no RoCE v2 GID"},
      {"gids", Severity::kWarning, &RoceHost,
       [](Host& h) { h.nic(1)["gids"][1]["gid"] = "fe80::2"; }, "link-local"},
      {"vf-guid", Severity::kProblem, &PodHost,
       [](Host& h) { h.description["nic_defaults"]["guid"] = "0000:0000:0000:0000"; },
       "port GUID zero on mlx5_0 mlx5_1"},
      {"vf-guid", Severity::kWarning, &PodHost,
       [](Host& h) { h.nic(0)["guid"] = "0000:0000:0000:0000"; },
       "port_guid GUID; echo 0000:3c:00.0"},
      {"fabrics", Severity::kWarning, &WellHost, [](Host& h) { h.nic(1)["sm_lid"] = 2; },
       "2 fabrics with one subnet prefix"},
      {"fabrics", Severity::kProblem, &WellHost,
       [](Host& h) {
         h.nic(1)["sm_lid"] = 2;
         h.fabrics = {"Fabric1=mlx5_*"};
       },
       "Fabric1 has ports of different subnets"},
      {"mtu", Severity::kWarning, &RoceHost,
       [](Host& h) {
         h.nic(0)["mtu"] = 1500;
         h.nic(1)["mtu"] = 1500;
       },
       "netdev MTU 1500, so active MTU 1024 of 4096"},
      {"mtu", Severity::kWarning, &WellHost, [](Host& h) { h.nic(0)["mtu"] = 2044; },
       "differ in MTU"},
  };
}

// Replaces the line that begins like `line`.
void SetLimit(Host& host, const std::string& name, const std::string& values) {
  std::string text = host.file("/proc/self/limits");
  const size_t at = text.find(name);
  ASSERT_NE(at, std::string::npos);
  const size_t end = std::min(text.find('\n', at), text.size());
  host.file("/proc/self/limits") = text.replace(at, end - at, name + " " + values + " units");
}

void DropCapabilities(Host& host) { host.file("/proc/self/status") = "CapEff:\t0000000000000000"; }

std::vector<Case> RightsCases() {
  return {
      {"memlock", Severity::kProblem, &WellHost,
       [](Host& h) {
         SetLimit(h, "Max locked memory", "8388608 8388608");
         DropCapabilities(h);
       },
       "memlock limit is 8 MiB"},
      {"memlock", Severity::kWarning, &WellHost,
       [](Host& h) {
         SetLimit(h, "Max locked memory", "68719476736 unlimited");
         DropCapabilities(h);
       },
       "64 GiB"},
      {"ipc-lock", Severity::kWarning, &WellHost,
       [](Host& h) {
         SetLimit(h, "Max locked memory", "8388608 8388608");
         DropCapabilities(h);
       },
       "capabilities.add: [IPC_LOCK]"},
      {"device-files", Severity::kProblem, &WellHost,
       [](Host& h) { h.denied = {"/dev/infiniband/uverbs1"}; }, "device file of mlx5_1"},
      {"device-files", Severity::kProblem, &WellHost,
       [](Host& h) {
         h.gone = {"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"};
       },
       "no device can be opened"},
      {"device-files", Severity::kWarning, &WellHost,
       [](Host& h) { h.Without("/sys/class/infiniband_verbs/uverbs1/ibdev"); }, "for mlx5_1"},
      {"open-files", Severity::kWarning, &BareHost,
       [](Host& h) { SetLimit(h, "Max open files", "1024 524288"); }, "ulimit -n 4096"},
      {"open-files", Severity::kWarning, &BareHost,
       [](Host& h) { SetLimit(h, "Max open files", "1024 2048"); }, "hard limit is too low"},
      {"processes", Severity::kWarning, &BareHost,
       [](Host& h) { SetLimit(h, "Max processes", "200 200"); }, "ulimit -u"},
      {"processes", Severity::kWarning, &BareHost,
       [](Host& h) { h.file("/sys/fs/cgroup/pids.max") = "100"; }, "cgroup allows at most 100"},
  };
}

std::vector<Case> MemoryCases() {
  return {
      {"huge-pages", Severity::kWarning, &BareHost,
       [](Host& h) { h.Without("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"); },
       "vm.nr_hugepages"},
      {"huge-pages", Severity::kWarning, &BareHost,
       [](Host& h) {
         h.file("/proc/sys/kernel/osrelease") = "5.14.0-427.el9";
         h.file("/sys/kernel/mm/transparent_hugepage/shmem_enabled") =
             "always within_size advise [never] deny force";
       },
       "shmem_enabled is never"},
      {"dev-shm", Severity::kWarning, &BareHost, [](Host& h) { h.shm_bytes = uint64_t{64} << 20; },
       "64 MiB"},
  };
}

std::vector<Case> SoftwareCases() {
  const std::string lib = kLibraries;
  return {
      {"yama", Severity::kWarning, &BareHost,
       [](Host& h) { h.file("/proc/sys/kernel/yama/ptrace_scope") = "1"; }, "ptrace_scope=0"},
      {"yama", Severity::kWarning, &BareHost,
       [](Host& h) { h.file("/proc/sys/kernel/yama/ptrace_scope") = "3"; }, "cannot be changed"},
      {"same-host", Severity::kWarning, &BareHost,
       [](Host& h) {
         h.file("/.dockerenv") = "";
         h.file("/proc/1/comm") = "python3";
       },
       "--pid=host"},
      {"libibverbs", Severity::kProblem, &WellHost, [](Host& h) { h.links.erase(h.links.begin()); },
       "libibverbs is not installed"},
      {"libibverbs", Severity::kProblem, &WellHost,
       [lib](Host& h) { h.Without(lib + "libibverbs/libmlx5-rdmav34.so"); }, "missing: mlx5"},
      {"libfabric", Severity::kProblem, &EfaHost,
       [lib](Host& h) { h.Without(lib + "libfabric.so.1"); }, "libfabric is not installed"},
      {"ucx", Severity::kWarning, &WellHost,
       [lib](Host& h) { h.Without(lib + "ucx/libuct_ib.so.0"); }, "ib is missing"},
      {"backends", Severity::kProblem, &BareHost,
       [](Host& h) { h.backends = {{.name = "tcp", .usable = false, .why = "no port is free"}}; },
       "no port is free"},
  };
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (auto list :
       {DeviceCases(), PortCases(), RightsCases(), MemoryCases(), GpuCases(), SoftwareCases()}) {
    for (Case& c : list) cases.push_back(std::move(c));
  }
  return cases;
}

TEST(Doctor, EachCheckFiresWhereSomethingIsWrong) {
  std::set<std::string> fired;
  for (const Case& c : AllCases()) {
    Host host = c.host();
    c.change(host);
    const auto view = ViewOf(host);
    ASSERT_NE(view, nullptr);
    const std::vector<CheckResult> results = RunChecks(*view);
    const CheckResult& result = ResultOf(results, c.check);
    std::string said;
    for (const Finding& f : result.findings) {
      said += f.what + "\n" + f.why + "\n" + f.fix + "\n";
      // Each problem has a reason and a fix.
      if (f.severity < Severity::kWarning) continue;
      EXPECT_FALSE(f.what.empty() || f.why.empty() || f.fix.empty()) << said;
    }
    EXPECT_EQ(result.severity, c.severity) << c.check << ": " << said;
    EXPECT_THAT(said, HasSubstr(c.says)) << c.check;
    fired.insert(c.check);
  }
  // Expect every check to be among the cases.
  const auto view = ViewOf(BareHost());
  ASSERT_NE(view, nullptr);
  for (const CheckResult& result : RunChecks(*view)) {
    EXPECT_TRUE(fired.contains(result.check->name)) << result.check->name;
  }
}

// No check finds anything on a healthy host, and each check applies to one of these hosts.
TEST(Doctor, NoCheckFiresWhereAllIsWell) {
  std::set<std::string> applied;
  std::set<std::string> all;
  for (const auto& make : {&WellHost, &RoceHost, &EfaHost, &PodHost, &BareHost}) {
    const auto view = ViewOf(make());
    ASSERT_NE(view, nullptr);
    const std::vector<CheckResult> results = RunChecks(*view);
    for (const CheckResult& result : results) {
      EXPECT_LE(result.severity, Severity::kOk)
          << result.check->name << ": " << result.findings[0].what;
      all.insert(result.check->name);
      if (result.severity == Severity::kOk) applied.insert(result.check->name);
    }
    EXPECT_TRUE(DoctorStatus(results, /*strict=*/true).ok());
  }
  EXPECT_EQ(applied, all);
}

// These look wrong, but are not.
TEST(Doctor, SaysNothingOfWhatMakesUpForIt) {
  struct Benign {
    const char* check;
    Host (*host)();
    std::function<void(Host&)> change;
  };
  const std::vector<Benign> cases = {
      {"memlock", &WellHost,
       [](Host& h) { SetLimit(h, "Max locked memory", "65536 65536"); }},  // IPC_LOCK
      {"ipc-lock", &WellHost, [](Host& h) { DropCapabilities(h); }},       // unlimited
      {"memlock", &BareHost,
       [](Host& h) { SetLimit(h, "Max locked memory", "65536 65536"); }},  // no device
      {"huge-pages", &BareHost,
       [](Host& h) {
         h.Without("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
         h.file("/proc/meminfo") = "HugePages_Total: 64\nHugePages_Free: 64";
       }},
      {"yama", &BareHost,
       [](Host& h) {
         h.file("/proc/sys/kernel/yama/ptrace_scope") = "1";
         h.file("/proc/self/status") = "CapEff:\t000001ffffffffff";
       }},
      {"same-host", &BareHost,
       [](Host& h) {
         h.file("/.dockerenv") = "";
         h.file("/proc/1/comm") = "systemd";
       }},
      {"fabrics", &WellHost,
       [](Host& h) {
         h.nic(1)["sm_lid"] = 2;
         h.fabrics = {"Fabric1=mlx5_0", "Fabric2=mlx5_1"};
       }},
      {"fabrics", &WellHost,
       [](Host& h) {
         h.nic(1).update({{"sm_lid", 2}, {"prefix", "fec0::"}});
       }},
      {"vf-guid", &WellHost,
       [](Host& h) {
         h.nic(0)["vfs"] = {{"count", 8}, {"first", 2}, {"state", "1: DOWN"}, {"guid", "0:0:0:0"}};
       }},  // spare
      {"mtu", &RoceHost,
       [](Host& h) {
         h.nic(0)["mtu"] = 4200;
         h.nic(1)["mtu"] = 4200;
       }},
      {"port-state", &PodHost,
       [](Host& h) {
         h.nic(0).update({{"state", "1: DOWN"}, {"guid", "0000:0000:0000:0000"}});
       }},  // vf-guid says it
  };
  for (const Benign& c : cases) {
    Host host = c.host();
    c.change(host);
    const auto view = ViewOf(host);
    ASSERT_NE(view, nullptr);
    const std::vector<CheckResult> results = RunChecks(*view);
    const CheckResult& result = ResultOf(results, c.check);
    EXPECT_LE(result.severity, Severity::kOk) << c.check << ": " << result.findings[0].what;
  }
}

TEST(Doctor, FilesThatSayNothingMakeNothingUp) {
  Host host = WellHost();
  for (const char* path : {"/proc/self/limits", "/proc/self/status", "/proc/meminfo",
                           "/proc/sys/kernel/osrelease", "/proc/sys/kernel/yama/ptrace_scope"}) {
    host.file(path) = "Max open files\nCapEff:\n[";
  }
  host.shm_bytes = 0;
  host.backends.clear();
  const auto view = ViewOf(host);
  ASSERT_NE(view, nullptr);
  const std::vector<CheckResult> results = RunChecks(*view);
  for (const char* check : {"memlock", "ipc-lock", "open-files", "dev-shm", "backends"}) {
    EXPECT_EQ(ResultOf(results, check).severity, Severity::kNotApplicable) << check;
  }
}

TEST(Doctor, StatusCountsProblemsAndWithStrictWarnings) {
  Host host = BareHost();
  const auto well = ViewOf(host);
  host.shm_bytes = 1;
  const auto warned = ViewOf(host);
  host.backends[0].usable = false;
  const auto broken = ViewOf(host);
  EXPECT_TRUE(DoctorStatus(RunChecks(*well), true).ok());
  EXPECT_TRUE(DoctorStatus(RunChecks(*warned), false).ok());
  const absl::Status strict = DoctorStatus(RunChecks(*warned), true);
  EXPECT_EQ(strict.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(strict.message()), HasSubstr("1 warning (--strict): dev-shm"));
  EXPECT_EQ(DoctorStatus(RunChecks(*broken), false).code(), absl::StatusCode::kAborted);
}

TEST(Doctor, TextPutsTheRemedyBelowAndCounts) {
  Host host = WellHost();
  host.nic(1)["lid"] = 0;
  host.shm_bytes = 1;
  const auto view = ViewOf(host);
  ASSERT_NE(view, nullptr);
  const std::string text = DoctorText(RunChecks(*view));
  EXPECT_THAT(text, HasSubstr("lid           PROBLEM  no LID on mlx5_1"));
  EXPECT_THAT(text, HasSubstr("1 problem, 1 warning, "));
  // Expect the more severe first.
  EXPECT_LT(text.find("\nPROBLEM"), text.find("\nWARNING"));
  EXPECT_THAT(text, HasSubstr("  fix   sminfo"));
  const Json json = DoctorJson(RunChecks(*view));
  EXPECT_EQ(json["problems"], 1);
  EXPECT_EQ(json["warnings"], 1);
}

TEST(DoctorTreeView, JudgesDeviceFilesByTheirMode) {
  auto folder = TemporaryFolder::Make();
  ASSERT_TRUE(folder.ok());
  SysfsTree tree;
  tree.File("/dev/infiniband/uverbs0", "");
  tree.File("/dev/infiniband/uverbs1", "");
  ASSERT_TRUE(tree.WriteTo(folder->path()).ok());
  ASSERT_EQ(chmod((folder->path() + "/dev/infiniband/uverbs0").c_str(), 0666), 0);
  ASSERT_EQ(chmod((folder->path() + "/dev/infiniband/uverbs1").c_str(), 0660), 0);
  const auto view = MakeTreeView(Sysfs(folder->path()), {});
  EXPECT_TRUE(view->MayOpen("/dev/infiniband/uverbs0").ok());
  EXPECT_TRUE(absl::IsPermissionDenied(view->MayOpen("/dev/infiniband/uverbs1")));
  EXPECT_TRUE(absl::IsNotFound(view->MayOpen("/dev/infiniband/uverbs2")));
  EXPECT_TRUE(view->Backends().empty());
}

TEST(DoctorBackends, ANameIsSaidOnce) {
  EXPECT_EQ(WithoutName("backend verbs: verbs: no device", "verbs"), "no device");
  EXPECT_EQ(WithoutName("libfabric: libfabric: no verbs: none", "libfabric"), "no verbs: none");
  EXPECT_EQ(WithoutName("verbs: none", "ucx"), "verbs: none");
  EXPECT_EQ(WithoutName("backend verbs: none", "ucx"), "backend verbs: none");
}

}  // namespace
}  // namespace kvxfer::cli
