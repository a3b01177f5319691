#include "src/cli/topo/topology_fixture.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/cli/common/options.h"
#include "src/core/base/strings.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer::cli {
namespace {

std::string Text(const Json& object, const char* field, const std::string& otherwise = "") {
  const auto it = object.find(field);
  if (it == object.end()) return otherwise;
  return it->is_string() ? it->get<std::string>() : it->dump();
}

int64_t Number(const Json& object, const char* field, int64_t otherwise) {
  const auto it = object.find(field);
  return it == object.end() || !it->is_number() ? otherwise : it->get<int64_t>();
}

Json List(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it == object.end() || !it->is_array() ? Json::array() : *it;
}

Json Object(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it == object.end() || !it->is_object() ? Json::object() : *it;
}

// Without "above", the parent is the host bridge of the domain and bus.
std::string PciFolder(const Json& device, const PciAddress& pci) {
  const std::string above =
      Text(device, "above", absl::StrFormat("pci%04x:%02x", pci.domain, pci.bus));
  return absl::StrCat("/sys/devices/", above, "/", pci.ToString());
}

// Adds the PCI device and returns its folder.
std::string AddPciDevice(const Json& device, const PciAddress& pci, SysfsTree& tree) {
  std::string folder = PciFolder(device, pci);
  tree.File(folder + "/vendor", Text(device, "vendor", "0x15b3"));
  tree.File(folder + "/device", Text(device, "device", "0x1021"));
  tree.File(folder + "/class", Text(device, "class", "0x020700"));
  tree.File(folder + "/numa_node", absl::StrCat(Number(device, "numa", -1)));
  for (const char* field : {"current_link_speed", "max_link_speed", "current_link_width",
                            "max_link_width", "resource"}) {
    if (device.contains(field)) tree.File(absl::StrCat(folder, "/", field), Text(device, field));
  }
  if (const std::string driver = Text(device, "driver"); !driver.empty()) {
    tree.Folder("/sys/bus/pci/drivers/" + driver);
    tree.Link(folder + "/driver", "/sys/bus/pci/drivers/" + driver);
  }
  tree.Link("/sys/bus/pci/devices/" + pci.ToString(), folder);
  return folder;
}

void AddNode(size_t id, size_t nodes, const Json& node, SysfsTree& tree) {
  const std::string folder = absl::StrCat("/sys/devices/system/node/node", id);
  tree.File(folder + "/cpulist", Text(node, "cpus"));
  tree.File(folder + "/meminfo", absl::StrFormat("Node %d MemTotal: %14d kB", id,
                                                 Number(node, "memory_gib", 0) * 1024 * 1024));
  std::vector<std::string> distances;
  for (size_t i = 0; i < nodes; ++i) distances.emplace_back(i == id ? "10" : "21");
  tree.File(folder + "/distance", Text(node, "distance", absl::StrJoin(distances, " ")));
}

// In the form of /sys/class/infiniband/*/ports/*/gids: eight groups of four digits.
std::string FullGid(const std::string& prefix, const std::string& guid) {
  const std::optional<IpSubnet> parsed = IpSubnet::Parse(prefix);
  std::string text;
  for (size_t i = 0; i < 8; i += 2) {
    const auto& bytes = parsed ? parsed->address : std::array<uint8_t, 16>{};
    absl::StrAppendFormat(&text, "%02x%02x:", bytes[i], bytes[i + 1]);
  }
  return text + guid;
}

void AddNetdev(const Json& nic, const std::string& folder, SysfsTree& tree) {
  const std::string name = Text(nic, "netdev");
  if (name.empty()) return;
  const std::string below = folder + "/net/" + name;
  tree.File(below + "/mtu", Text(nic, "mtu", "4092"));
  tree.File(below + "/operstate", Text(nic, "operstate", "up"));
  tree.File(below + "/dev_port", "0");
  tree.File(below + "/dev_id", "0x0");
  if (nic.contains("hardware_address")) {
    tree.File(below + "/address", Text(nic, "hardware_address"));
  }
  tree.Link(below + "/device", folder);
  tree.Link("/sys/class/net/" + name, below);
}

void AddPort(const Json& nic, const std::string& rdma, const std::string& guid, SysfsTree& tree) {
  const std::string port = rdma + "/ports/1";
  const bool active = Text(nic, "state", "4: ACTIVE") == "4: ACTIVE";
  tree.File(port + "/state", Text(nic, "state", "4: ACTIVE"));
  tree.File(port + "/phys_state", Text(nic, "physical", active ? "5: LinkUp" : "3: Disabled"));
  tree.File(port + "/link_layer", Text(nic, "link", "InfiniBand"));
  tree.File(port + "/rate", Text(nic, "rate", "400 Gb/sec (4X NDR)"));
  const auto lid = [&](const char* field) {
    return absl::StrFormat("0x%x", static_cast<uint32_t>(Number(nic, field, 0)));
  };
  tree.File(port + "/lid", lid("lid"));
  tree.File(port + "/sm_lid", lid("sm_lid"));
  Json gids = List(nic, "gids");
  if (!nic.contains("gids"))
    gids.push_back({{"gid", FullGid(Text(nic, "prefix", "fe80::"), guid)}});
  for (const Json& gid : gids) {
    const std::string index = absl::StrCat(Number(gid, "index", 0));
    tree.File(absl::StrCat(port, "/gids/", index), Text(gid, "gid"));
    tree.File(absl::StrCat(port, "/gid_attrs/types/", index), Text(gid, "type", "IB/RoCE v1"));
    if (gid.contains("netdev")) {
      tree.File(absl::StrCat(port, "/gid_attrs/ndevs/", index), Text(gid, "netdev"));
    }
  }
}

// Adds a NIC and its virtual functions: NICs whose fields are replaced by those of "vfs".
absl::Status AddNic(const Json& nic, const std::string& parent, SysfsTree& tree) {
  const std::string name = Text(nic, "name");
  const std::optional<PciAddress> pci = PciAddress::Parse(Text(nic, "pci"));
  if (name.empty() || !pci) {
    return Invalid("topology: a NIC needs a name and a PCI address: ", nic.dump());
  }
  const std::string folder = AddPciDevice(nic, *pci, tree);
  const std::string rdma = folder + "/infiniband/" + name;
  const std::string guid =
      Text(nic, "guid",
           absl::StrFormat("a088:c203:00%02x:%02x%02x", pci->bus, pci->device, pci->function));
  tree.File(rdma + "/node_guid", guid);
  tree.File(rdma + "/fw_ver", Text(nic, "firmware", "28.39.3004"));
  if (nic.contains("board")) tree.File(rdma + "/board_id", Text(nic, "board"));
  tree.Link(rdma + "/device", folder);
  tree.Link("/sys/class/infiniband/" + name, rdma);
  AddPort(nic, rdma, guid, tree);
  AddNetdev(nic, folder, tree);
  if (!parent.empty()) tree.Link(folder + "/physfn", parent);
  // A pod sees the parent's PCI device, but not its RDMA device.
  if (const auto hidden = PciAddress::Parse(Text(nic, "parent"))) {
    const std::string above = PciFolder(nic, *hidden);
    tree.File(above + "/vendor", Text(nic, "vendor", "0x15b3"));
    tree.Link(folder + "/physfn", above);
  }
  const Json vfs = Object(nic, "vfs");
  if (vfs.empty()) return absl::OkStatus();
  const int64_t count = Number(vfs, "count", 0);
  tree.File(folder + "/sriov_numvfs", absl::StrCat(count));
  for (int64_t i = 0; i < count; ++i) {
    Json vf = nic;
    vf.erase("vfs");
    vf.erase("netdev");
    vf.update(vfs);
    const int64_t slot = pci->device * 8 + pci->function + 1 + i;
    vf["name"] = absl::StrCat("mlx5_", Number(vfs, "first", 0) + i);
    vf["pci"] = absl::StrFormat("%04x:%02x:%02x.%x", pci->domain, pci->bus, slot / 8, slot % 8);
    if (!vfs.contains("guid")) vf.erase("guid");
    if (absl::Status s = AddNic(vf, folder, tree); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status AddGpu(const Json& gpu, SysfsTree& tree) {
  const std::optional<PciAddress> pci = PciAddress::Parse(Text(gpu, "pci"));
  if (!pci) {
    return Invalid("topology: a GPU needs a PCI address: ", gpu.dump());
  }
  AddPciDevice(gpu, *pci, tree);
  return absl::OkStatus();
}

Json WithDefaults(const Json& description, const char* defaults, const Json& device) {
  Json whole = Object(description, defaults);
  whole.update(device);
  return whole;
}

absl::StatusOr<TopologySource> Described(const std::string& name) {
  absl::StatusOr<TopologyFixture> fixture = FindTopologyFixture(name);
  if (!fixture.ok()) return fixture.status();
  absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Make();
  if (!folder.ok()) return folder.status();
  if (absl::Status s = fixture->tree.WriteTo(folder->path()); !s.ok()) return s;
  return TopologySource{.sysfs = Sysfs(folder->path()),
                        .folder = *std::move(folder),
                        .title = std::move(fixture->title),
                        .origin = std::move(fixture->origin),
                        .source = std::move(fixture->source),
                        .fabrics = std::move(fixture->fabrics)};
}

}  // namespace

absl::StatusOr<TopologyFixture> MakeTopologyFixture(const Json& description) {
  TopologyFixture fixture;
  fixture.title = Text(description, "title");
  fixture.origin = Text(description, "origin");
  fixture.source = Text(description, "source");
  if (fixture.origin.empty() || fixture.source.empty()) {
    return Invalid("topology: 'origin' and 'source' must say where it comes from");
  }
  for (const Json& fabric : List(description, "fabrics")) {
    if (fabric.is_string()) fixture.fabrics.push_back(fabric.get<std::string>());
  }
  SysfsTree& tree = fixture.tree;
  tree.Folder("/sys/class/net");
  const Json nodes = List(description, "nodes");
  for (size_t i = 0; i < nodes.size(); ++i) AddNode(i, nodes.size(), nodes[i], tree);
  for (const Json& gpu : List(description, "gpus")) {
    if (!gpu.is_object()) return Invalid("topology: a GPU is not an object");
    if (auto s = AddGpu(WithDefaults(description, "gpu_defaults", gpu), tree); !s.ok()) return s;
  }
  for (const Json& nic : List(description, "nics")) {
    if (!nic.is_object()) return Invalid("topology: a NIC is not an object");
    const Json whole = WithDefaults(description, "nic_defaults", nic);
    if (absl::Status s = AddNic(whole, "", tree); !s.ok()) return s;
  }
  const Json files = Object(description, "files");
  for (const auto& [path, text] : files.items()) {
    tree.File(path, text.is_string() ? text.get<std::string>() : text.dump());
  }
  return fixture;
}

absl::StatusOr<TopologyFixture> ParseTopologyFixture(std::string_view json) {
  const absl::StatusOr<Json> description = ParseJsonObject(json);
  if (!description.ok()) return Annotate(description.status(), "topology");
  return MakeTopologyFixture(*description);
}

absl::StatusOr<TopologyFixture> FindTopologyFixture(std::string_view name) {
  for (const BuiltinTopology& builtin : BuiltinTopologies()) {
    if (builtin.name == name) return ParseTopologyFixture(builtin.json);
  }
  return absl::NotFoundError(absl::StrCat("no fixture '", ToAbsl(name), "', and no such folder",
                                          DidYouMeanOrChoose(name, NamesOf(BuiltinTopologies()))));
}

absl::StatusOr<TopologySource> OpenTopology(const std::string& root, const std::string& fixture) {
  if (!root.empty() && !fixture.empty()) {
    return Invalid("--root and --fixture exclude each other");
  }
  std::error_code error;
  if (!fixture.empty() && !std::filesystem::is_directory(fixture, error)) return Described(fixture);
  const std::string& folder = fixture.empty() ? root : fixture;
  TopologySource source{.sysfs = Sysfs(folder.empty() ? "/" : folder)};
  if (absl::Status s = source.sysfs.Check(); !s.ok()) {
    return Annotate(s, fixture.empty() ? "--root" : "--fixture");
  }
  return source;
}

absl::StatusOr<Topology> ReadNamedTopology(const TopologySource& source,
                                           const std::vector<std::string>& fabrics) {
  absl::StatusOr<Topology> topology = ReadTopology(source.sysfs);
  if (!topology.ok()) return topology.status();
  std::vector<FabricName> names;
  for (const std::string& text : fabrics.empty() ? source.fabrics : fabrics) {
    absl::StatusOr<FabricName> name = FabricName::Parse(text);
    if (!name.ok()) return Annotate(name.status(), "--fabric");
    names.push_back(*std::move(name));
  }
  if (absl::Status s = NameFabrics(names, *topology); !s.ok()) return s;
  return topology;
}

}  // namespace kvxfer::cli
