#include "src/backends/verbs/port_choice.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/backends/verbs/port.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/topology/port_selector.h"
#include "src/core/topology/rails.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer::verbs {
namespace {

constexpr char kDevices[] = "`verbs.devices` (KVXFER_VERBS_DEVICES)";
constexpr char kFabrics[] = "`verbs.fabrics` (KVXFER_VERBS_FABRICS)";

void AddPorts(Ibv& ibv, ibv_context* context, const std::string& name, Topology& topology) {
  ibv_device_attr device{};
  if (ibv.QueryDevice(context, &device) != 0) return;
  topology.devices.push_back({.name = name});
  for (uint32_t number = 1; number <= device.phys_port_cnt; ++number) {
    const auto port_number = static_cast<uint8_t>(number);
    ibv_port_attr attr{};
    if (ibv.QueryPort(context, port_number, &attr) != 0) continue;
    RdmaPort port{.device = topology.devices.size() - 1, .number = number};
    port.state = attr.state == IBV_PORT_ACTIVE ? PortState::kActive : PortState::kDown;
    port.link = LinkLayerOf(attr.link_layer);
    for (const ibv_gid_entry& entry : ReadGids(ibv, context, port_number, attr.gid_tbl_len)) {
      kvxfer::Gid gid{.index = entry.gid_index};
      std::memcpy(gid.bytes.data(), entry.gid.raw, gid.bytes.size());
      port.gids.push_back(std::move(gid));
    }
    port.fabric = FabricHintOf(port);
    topology.ports.push_back(std::move(port));
  }
}

// Names the fabrics. An entry without "=" continues the entry before it, because lists arrive split
// at commas.
absl::Status NameThem(const std::vector<std::string>& entries, Topology& topology) {
  std::vector<std::string> whole;
  for (const std::string& entry : entries) {
    if (entry.find('=') == std::string::npos && !whole.empty()) {
      absl::StrAppend(&whole.back(), ",", entry);
    } else {
      whole.push_back(entry);
    }
  }
  std::vector<FabricName> names;
  for (const std::string& entry : whole) {
    absl::StatusOr<FabricName> name = FabricName::Parse(entry);
    if (!name.ok()) return name.status();
    names.push_back(*std::move(name));
  }
  return NameFabrics(names, topology);
}

}  // namespace

void AddMissing(Ibv& ibv, const std::vector<std::string>& names, Topology& topology) {
  for (const std::string& name : names) {
    if (std::ranges::find(topology.devices, name, &RdmaDevice::name) != topology.devices.end()) {
      continue;
    }
    ibv_context* const context = ibv.Open(name);
    if (context == nullptr) continue;
    AddPorts(ibv, context, name, topology);
    ibv.Close(context);
  }
}

absl::StatusOr<VerbsOptions> ChoosePorts(VerbsOptions options, Topology* topology) {
  if (topology->ports.empty()) return options;
  if (absl::Status named = NameThem(options.fabrics, *topology); !named.ok()) {
    return Annotate(named, kFabrics);
  }
  absl::StatusOr<PortSelector> selector = PortSelector::Parse(absl::StrJoin(options.devices, ","));
  if (!selector.ok()) return Annotate(selector.status(), kDevices);
  absl::StatusOr<std::vector<size_t>> selected = selector->Select(*topology);
  if (!selected.ok()) return Annotate(selected.status(), kDevices);
  for (const LeftOut& left : LeaveOutSharers(*topology, *selector, *selected)) {
    Log(LogLevel::kInfo, "verbs: not used: {}: {}", topology->PortName(topology->ports[left.port]),
        left.why);
  }
  options.devices.clear();
  options.fabrics.clear();
  for (const size_t i : *selected) {
    const RdmaPort& port = topology->ports[i];
    options.devices.push_back(topology->PortName(port));
    if (!port.fabric_named) continue;
    options.fabrics.push_back(absl::StrCat(port.fabric, "=", topology->PortName(port)));
  }
  return options;
}

absl::Status CheckNamed(const std::vector<std::string>& asked, const VerbsOptions& chosen,
                        const Topology& topology, const std::vector<std::string>& used,
                        const absl::Status& why) {
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  for (const std::string& entry : asked) {
    const absl::StatusOr<PortSelector> selector = PortSelector::Parse(entry);
    if (!selector.ok()) return selector.status();
    bool named = false;
    bool in_use = false;
    for (const RdmaPort& port : topology.ports) {
      const std::string name = topology.PortName(port);
      if (!selector->Names(topology, port) || !has(chosen.devices, name)) continue;
      named = true;
      in_use = in_use || has(used, name);
    }
    if (!named || in_use) continue;
    return absl::NotFoundError(absl::StrCat(kDevices, " names ", entry,
                                            ", which could not be opened", why.ok() ? "" : ": ",
                                            why.message()));
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::verbs
