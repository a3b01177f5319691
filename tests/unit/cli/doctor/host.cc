#include "tests/unit/cli/doctor/host.h"

#include <gtest/gtest.h>

#include <utility>

#include "src/cli/doctor/doctor.h"
#include "src/cli/topo/sysfs_tree.h"
#include "src/cli/topo/topology_fixture.h"
#include "src/core/topology/port_selector.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer::cli {
namespace {

class HostView final : public SystemView {
 public:
  HostView(TemporaryFolder folder, Host host, Topology topology)
      : SystemView(Sysfs(folder.path()), std::move(topology)),
        folder_(std::move(folder)),
        host_(std::move(host)) {}

  absl::Status MayOpen(const std::string& path) const override {
    if (host_.gone.contains(path)) return absl::NotFoundError(path);
    if (host_.denied.contains(path)) return absl::PermissionDeniedError(path);
    return absl::OkStatus();
  }
  std::optional<uint64_t> FilesystemBytes(const std::string&) const override {
    return host_.shm_bytes == 0 ? std::nullopt : std::optional(host_.shm_bytes);
  }
  std::string LibraryVersion(const std::string&) const override { return {}; }
  std::vector<BackendState> Backends() const override { return host_.backends; }
  const CudaState& Cuda() const override { return host_.cuda; }

 private:
  TemporaryFolder folder_;
  Host host_;
};

// Two whole H100, joined by NVLink.
CudaState TwoGpus() {
  CudaState state{.asked = true, .version = 13000, .library = "/usr/lib64/libcuda.so.580.65.06"};
  for (int i = 0; i < 2; ++i) {
    state.devices.push_back({.ordinal = i,
                             .name = "NVIDIA H100 80GB HBM3",
                             .uuid = std::string(32, i == 0 ? 'a' : 'b'),
                             .pci = i == 0 ? "0000:3b:00.0" : "0000:4c:00.0",
                             .memory = size_t{80} << 30,
                             .compute = 90,
                             .virtual_memory = true,
                             .fd_handles = true,
                             .gpu_direct = true,
                             .dmabuf = true,
                             .flush_options = 1});
    state.links.push_back({.from = i, .to = 1 - i, .access = true, .atomics = true, .rank = 0});
  }
  return state;
}

}  // namespace

std::unique_ptr<SystemView> ViewOf(const Host& host) {
  auto fixture = MakeTopologyFixture(host.description);
  EXPECT_TRUE(fixture.ok()) << fixture.status();
  auto folder = TemporaryFolder::Make();
  EXPECT_TRUE(folder.ok()) << folder.status();
  if (!fixture.ok() || !folder.ok()) return nullptr;
  for (const std::string& link : host.links) {
    fixture->tree.Link(link.substr(0, link.find('=')), link.substr(link.find('=') + 1));
  }
  EXPECT_TRUE(fixture->tree.WriteTo(folder->path()).ok());
  auto topology = ReadTopology(Sysfs(folder->path()));
  EXPECT_TRUE(topology.ok()) << topology.status();
  if (!topology.ok()) return nullptr;
  std::vector<FabricName> names;
  for (const std::string& text : host.fabrics) names.push_back(*FabricName::Parse(text));
  EXPECT_TRUE(NameFabrics(names, *topology).ok());
  return std::make_unique<HostView>(*std::move(folder), host, *std::move(topology));
}

Host WellHost() {
  const Json card = {{"driver", "mlx5_core"},
                     {"numa", 0},
                     {"sm_lid", 1},
                     {"board", "MT_0000000838"},
                     {"current_link_speed", "32.0 GT/s PCIe"},
                     {"max_link_speed", "32.0 GT/s PCIe"},
                     {"current_link_width", "16"},
                     {"max_link_width", "16"}};
  Json files = {
      {"/proc/self/limits",
       "Limit                     Soft Limit           Hard Limit           Units\n"
       "Max processes             100000               100000               processes\n"
       "Max open files            65536                65536                files\n"
       "Max locked memory         unlimited            unlimited            bytes"},
      {"/proc/self/status", "Name:\tkvxfer\nCapEff:\t0000000000004000\nSeccomp:\t0"},
      {"/proc/sys/kernel/osrelease", "6.1.0-18-amd64"},
      {"/proc/sys/kernel/yama/ptrace_scope", "0"},
      {"/proc/meminfo", "MemTotal: 1 kB\nHugePages_Total:       0\nHugePages_Free:        0"},
      {"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152"},
      {"/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "0"},
      {"/dev/null", ""},
      {"/sys/module/nvidia/version", "550.54"},
      {"/sys/module/nvidia_peermem/version", "550.54"},
      {"/sys/fs/cgroup/pids.max", "max"},
      {"/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0"},
      {"/sys/class/infiniband_verbs/uverbs1/ibdev", "mlx5_1"}};
  for (const char* library :
       {"libibverbs.so.1.14.44.0", "libibverbs/libmlx5-rdmav34.so", "libibverbs/libefa-rdmav34.so",
        "libucp.so.0.0.0", "ucx/libuct_ib.so.0"}) {
    files[std::string(kLibraries) + library] = "";
  }
  const std::string lib = kLibraries;
  return {
      .description = {{"origin", "synthetic"},
                      {"source", "made for this test"},
                      {"nodes", {{{"cpus", "0-7"}}}},
                      {"gpu_defaults",
                       {{"vendor", "0x10de"},
                        {"class", "0x030200"},
                        {"numa", 0},
                        // Of 64 bits each: two lines.
                        {"resource",
                         "0x000021e042000000 0x000021e042ffffff 0x000000000014220c\n"
                         "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
                         "0x000021c000000000 0x000021dfffffffff 0x000000000014220c\n"
                         "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
                         "0x000021e040000000 0x000021e041ffffff 0x000000000014220c\n"
                         "0x0000000000000000 0x0000000000000000 0x0000000000000000"}}},
                      {"gpus", {{{"pci", "3b:00.0"}}, {{"pci", "4c:00.0"}}}},
                      {"nic_defaults", card},
                      {"nics",
                       {{{"name", "mlx5_0"}, {"pci", "3c:00.0"}, {"netdev", "ib0"}, {"lid", 5}},
                        {{"name", "mlx5_1"}, {"pci", "4d:00.0"}, {"netdev", "ib1"}, {"lid", 6}}}},
                      {"files", files}},
      .links = {lib + "libibverbs.so.1=" + lib + "libibverbs.so.1.14.44.0",
                lib + "libucp.so.0=" + lib + "libucp.so.0.0.0"},
      .cuda = TwoGpus()};
}

Host RoceHost() {
  Host host = WellHost();
  for (size_t i = 0; i < 2; ++i) {
    const std::string netdev = i == 0 ? "eth0" : "eth1";
    host.nic(i).update(
        {{"link", "Ethernet"},
         {"netdev", netdev},
         {"mtu", 9000},
         {"gids",
          {{{"index", 0}, {"gid", "fe80::1"}, {"type", "IB/RoCE v1"}},
           {{"index", 3}, {"gid", "::ffff:10.0.0.1"}, {"type", "RoCE v2"}, {"netdev", netdev}}}}});
  }
  return host;
}

Host EfaHost() {
  Host host = WellHost();
  for (size_t i = 0; i < 2; ++i) {
    host.nic(i).update({{"vendor", "0x1d0f"},
                        {"device", "0xefa1"},
                        {"driver", "efa"},
                        {"link", "Unknown"},
                        {"rate", "100 Gb/sec (4X EDR)"},
                        {"lid", 0}});
  }
  host.file("/sys/module/efa_nv_peermem/version") = "1.0";
  host.file(std::string(kLibraries) + "libfabric.so.1") = "";
  return host;
}

Host PodHost() {
  Host host = WellHost();
  host.nic(0).update({{"parent", "3c:00.7"}, {"device", "0x101e"}});
  host.nic(1).update({{"parent", "4d:00.7"}, {"device", "0x101e"}});
  return host;
}

Host BareHost() {
  Host host = WellHost();
  host.description.erase("nics");
  host.description.erase("gpus");
  host.cuda = {.asked = true, .status = absl::UnimplementedError("no libcuda.so.1")};
  return host;
}

const CheckResult& ResultOf(const std::vector<CheckResult>& results, const std::string& name) {
  for (const CheckResult& result : results) {
    if (result.check->name == name) return result;
  }
  ADD_FAILURE() << "no check " << name;
  return results.front();
}

}  // namespace kvxfer::cli
