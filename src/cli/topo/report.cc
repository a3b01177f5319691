#include "src/cli/topo/report.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli {
namespace {

// The address without its domain if that is 0.
std::string ShortPci(const PciAddress& pci) {
  const std::string text = pci.ToString();
  return pci.domain == 0 ? text.substr(5) : text;
}

std::string NetdevText(const RdmaPort& port) {
  std::vector<std::string> names;
  for (const Netdev& netdev : port.netdevs) names.push_back(netdev.name);
  return names.empty() ? "-" : absl::StrJoin(names, ",");
}

// The name without the port's number if its device has one port.
std::string ShortName(const Topology& topology, size_t port) {
  const RdmaPort& named = topology.ports[port];
  const auto ports_of_device =
      std::count_if(topology.ports.begin(), topology.ports.end(),
                    [&](const RdmaPort& other) { return other.device == named.device; });
  return ports_of_device == 1 ? topology.DeviceOf(named).name : topology.PortName(named);
}

// Shortens long runs of neighbours to "first..last (32)": a host may have a hundred virtual
// functions.
std::string PortList(const Topology& topology, const std::vector<size_t>& ports) {
  std::string text;
  for (size_t i = 0; i < ports.size();) {
    size_t last = i;
    while (last + 1 < ports.size() && ports[last + 1] == ports[last] + 1) ++last;
    if (last < i + 4) last = i;
    absl::StrAppend(&text, text.empty() ? "" : " ", ShortName(topology, ports[i]));
    if (last > i) {
      absl::StrAppend(&text, "..", ShortName(topology, ports[last]), " (", last - i + 1, ")");
    }
    i = last + 1;
  }
  return text;
}

std::string NodesText(const Topology& topology) {
  TextGrid grid({TextGrid::Align::kLeft, TextGrid::Align::kRight});
  for (const NumaNode& node : topology.nodes) {
    std::vector<std::string> gpus;
    for (size_t i = 0; i < topology.gpus.size(); ++i) {
      if (topology.gpus[i].numa_node == node.id) {
        gpus.push_back(absl::StrCat("G", i, " ", ShortPci(topology.gpus[i].pci)));
      }
    }
    grid.Add(
        {absl::StrCat("N", node.id), node.memory_bytes == 0 ? "-" : FormatBytes(node.memory_bytes),
         node.cpus.empty() ? "" : absl::StrCat("CPUs ", node.cpus), absl::StrJoin(gpus, "  ")});
  }
  std::string text = grid.ToString();
  for (size_t i = 0; i < topology.gpus.size(); ++i) {
    const bool shown =
        std::any_of(topology.nodes.begin(), topology.nodes.end(),
                    [&](const NumaNode& node) { return node.id == topology.gpus[i].numa_node; });
    if (shown) continue;
    absl::StrAppend(&text, "G", i, " ", ShortPci(topology.gpus[i].pci), " on no known NUMA node\n");
  }
  return text;
}

// A line of the matrix: one port, or several equal virtual functions of one parent.
struct Line {
  size_t first = 0;
  size_t count = 1;
};

bool LookAlike(const Topology& topology, const RdmaPort& a, const RdmaPort& b) {
  return topology.DeviceOf(a).physical_function == topology.DeviceOf(b).physical_function &&
         a.fabric == b.fabric && a.state == b.state && a.gbps == b.gbps &&
         NetdevText(a) == NetdevText(b);
}

std::vector<Line> Lines(const Topology& topology, const RailPlan& plan) {
  std::vector<std::string> why(topology.ports.size());
  for (const LeftOut& out : plan.left_out) why[out.port] = out.why;
  std::vector<Line> lines;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const RdmaPort& port = topology.ports[i];
    if (!lines.empty() && topology.DeviceOf(port).physical_function && !why[i].empty()) {
      const size_t above = lines.back().first;
      if (why[above] == why[i] && LookAlike(topology, topology.ports[above], port)) {
        ++lines.back().count;
        continue;
      }
    }
    lines.push_back({.first = i});
  }
  return lines;
}

std::string LineName(const Topology& topology, const Line& line) {
  std::string first = ShortName(topology, line.first);
  if (line.count == 1) return first;
  return absl::StrCat(first, "..", ShortName(topology, line.first + line.count - 1));
}

std::string KindText(const Topology& topology, const Line& line) {
  const RdmaDevice& device = topology.DeviceOf(topology.ports[line.first]);
  if (!device.subfunction.empty()) {
    const RdmaDevice* parent = topology.ParentOf(device);
    return absl::StrCat("SF of ", parent != nullptr ? parent->name : ShortPci(*device.pci));
  }
  if (!device.physical_function) {
    return device.virtual_functions > 0 ? absl::StrCat("PF, ", device.virtual_functions, " VFs")
                                        : "";
  }
  const RdmaDevice* parent = topology.ParentOf(device);
  return absl::StrCat(line.count > 1 ? absl::StrCat(line.count, " VFs of ") : "VF of ",
                      parent != nullptr ? parent->name : ShortPci(*device.physical_function));
}

// "switch*": the distance, and whether transfers from that place take the port.
std::string Cell(const Topology& topology, const Place& place, size_t port) {
  const RdmaDevice& device = topology.DeviceOf(topology.ports[port]);
  const std::string distance = ToString(DistanceOf(topology, device, place.place));
  for (const PlannedRail& rail : place.plan.rails) {
    if (rail.port == port) return distance + (rail.near ? "*" : " ");
  }
  return distance == "?" ? "- " : absl::StrCat("(", distance, ")");
}

// The name of each line, its distances from `places` and, with `facts`, the properties of its port.
std::string Columns(const Topology& topology, const std::vector<Line>& lines,
                    std::span<const Place> places, bool facts) {
  using Align = TextGrid::Align;
  std::vector<Align> columns(facts ? 6 : 1, Align::kLeft);
  std::vector<std::string> header = {"port"};
  if (facts) {
    columns[4] = Align::kRight;  // Gb/s
    header = {"port", "PCI", "netdev", "fabric", "Gb/s", "state"};
  }
  columns.resize(columns.size() + places.size(), Align::kRight);
  for (const Place& place : places) header.push_back(place.column + " ");
  TextGrid grid(columns);
  grid.Add(header);
  for (const Line& line : lines) {
    const RdmaPort& port = topology.ports[line.first];
    const RdmaDevice& device = topology.DeviceOf(port);
    std::vector<std::string> row = {LineName(topology, line)};
    if (facts) {
      row = {row[0],
             device.pci ? ShortPci(*device.pci) : "-",
             NetdevText(port),
             port.fabric,
             port.gbps > 0 ? absl::StrFormat("%.4g", port.gbps) : "-",
             ToString(port.state)};
    }
    for (const Place& place : places) row.push_back(Cell(topology, place, line.first));
    if (facts) row.push_back(KindText(topology, line));
    grid.Add(std::move(row));
  }
  return grid.ToString();
}

size_t WidestLine(const std::string& text) {
  size_t width = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    width = std::max(width, line.size());
  }
  return width;
}

// One table, or a second one for GPUs if one would be too wide.
std::string Matrix(const Topology& topology, const std::vector<Place>& places) {
  constexpr size_t kWide = 140;
  const std::vector<Line> lines = Lines(topology, places.front().plan);
  std::string one = Columns(topology, lines, places, true);
  if (WidestLine(one) <= kWide) return one;
  const std::span<const Place> all(places);
  return absl::StrCat(Columns(topology, lines, all.first(topology.nodes.size()), true), "\n",
                      Columns(topology, lines, all.subspan(topology.nodes.size()), false));
}

// The rails of one fabric: those that transfers take first, and the number of the others.
struct FabricRails {
  std::vector<size_t> near{};
  std::map<DeviceDistance, std::pair<size_t, uint32_t>> others{};  // number, penalty
};

std::string RailPlanText(const Topology& topology, const RailPlan& plan) {
  std::map<std::string, FabricRails> by_fabric;
  for (const PlannedRail& rail : plan.rails) {
    FabricRails& rails = by_fabric[topology.ports[rail.port].fabric];
    if (rail.near) {
      rails.near.push_back(rail.port);
    } else {
      auto& [count, penalty] = rails.others[rail.distance];
      ++count;
      penalty = rail.penalty;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [fabric, rails] : by_fabric) {
    std::string part = by_fabric.size() > 1 ? fabric + ": " : "";
    absl::StrAppend(&part, PortList(topology, rails.near));
    const char* word = ", then ";
    for (const auto& [distance, other] : rails.others) {
      absl::StrAppend(&part, absl::StrFormat("%s%d %s (x%d)", word, other.first, ToString(distance),
                                             1 + other.second));
      word = ", ";
    }
    parts.push_back(part);
  }
  return parts.empty() ? "none" : absl::StrJoin(parts, "; ");
}

std::string LeftOutText(const Topology& topology, const RailPlan& plan) {
  std::vector<std::pair<std::string, std::vector<size_t>>> by_reason;
  for (const LeftOut& out : plan.left_out) {
    auto it = std::ranges::find(by_reason, out.why, [](const auto& entry) { return entry.first; });
    if (it == by_reason.end()) it = by_reason.insert(it, {out.why, {}});
    it->second.push_back(out.port);
  }
  std::string text;
  for (const auto& [why, ports] : by_reason) {
    absl::StrAppend(&text, "  ", PortList(topology, ports), "\n      ", why, "\n");
  }
  return text;
}

}  // namespace

std::string TopologyText(const Topology& topology, const PortSelector& selector) {
  std::string text = NodesText(topology) + "\n";
  if (topology.ports.empty()) {
    return text +
           "no RDMA port: /sys/class/infiniband is empty. Transfers go over tcp and shm.\n"
           "`kvxfer doctor` reports what may be missing.\n";
  }
  const std::vector<Place> places = Places(topology, selector);
  text += Matrix(topology, places);
  text +=
      "\nswitch: same PCIe switch  root: same root complex  node: same NUMA node\n"
      "socket: another node of the same CPU  far: another CPU  ?: unknown  -: left out, unknown\n"
      "*: nearest of its fabric, taken first by transfers from there  (...): left out, see below\n"
      "\nrails of a transfer from memory on (x: cost of a byte, relative to the nearest rail)\n";
  TextGrid grid;
  for (const Place& place : places) grid.Add({place.name, RailPlanText(topology, place.plan)});
  text += grid.ToString("  ");
  // The reason to leave a port out does not depend on the place of the memory.
  if (const std::string out = LeftOutText(topology, places.front().plan); !out.empty()) {
    text += "\nleft out\n" + out;
  }
  return text;
}

}  // namespace kvxfer::cli
