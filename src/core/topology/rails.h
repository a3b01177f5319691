// Which NIC ports serve memory at a place, nearest first, and why the others do not.
//
// Thread-safety: free functions over plain values.
//
// Example:
//   RailPlan plan = PlanRails(topology, {MemoryPlace::Kind::kGpu, 0}, PortSelector());
//   for (const PlannedRail& rail : plan.rails) Open(topology.ports[rail.port]);

#ifndef KVXFER_CORE_TOPOLOGY_RAILS_H_
#define KVXFER_CORE_TOPOLOGY_RAILS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "src/core/topology/port_selector.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

inline constexpr uint32_t kMaxPenalty = 2;

struct PlannedRail {
  size_t port = 0;  // index into Topology::ports
  DeviceDistance distance = DeviceDistance::kUnknown;
  // Of the nearest of its fabric: transfers take these while they can.
  bool near = false;
  // A byte costs 1 + this as much as on a near rail, which has 0; at most kMaxPenalty.
  uint32_t penalty = 0;
};

struct LeftOut {
  size_t port = 0;
  std::string why{};  // for a person, with the remedy
};

// Of the ports of one wire (WireOf) and one fabric that the user named, all but one are moved out
// of `ports`, for more of them carry no more. What stays is one that the selector names, else one
// that can carry data now, else one that can once its link is up, else the physical function's,
// else the first.
std::vector<LeftOut> LeaveOutSharers(const Topology& topology, const PortSelector& selector,
                                     std::vector<size_t>& ports);

struct RailPlan {
  std::vector<PlannedRail>
      rails{};  // nearest first; equals by distance between NUMA nodes, then as they are
  std::vector<LeftOut> left_out{};
};

// Nearness is judged within a fabric, for a peer may be in one of them only. Of the ports of one
// wire that can carry data one is a rail (LeaveOutSharers).
RailPlan PlanRails(const Topology& topology, const MemoryPlace& place,
                   const PortSelector& selector);

// PlannedRail::penalty of each of `ports`, whatever their state, for memory at `place`.
std::vector<uint32_t> Penalties(const Topology& topology, const MemoryPlace& place,
                                std::span<const size_t> ports);

// Why `port` cannot carry data now, with the remedy. Empty: it can.
std::string WhyUnusable(const Topology& topology, const RdmaPort& port);

// What is known beforehand of whether two ports, on one host or on two, reach each other. Data goes
// only where a probe went through; this says which pairs to probe, and in which order.
enum class Reach : uint8_t {
  kNo,        // do not try: different link layers, or the user named different fabrics
  kUnlikely,  // different InfiniBand subnets
  kMaybe,     // nothing speaks against it: Ethernet, EFA, or the default subnet prefix on both
  kLikely,    // one fabric by name, or one subnet prefix that somebody configured
};

// What a port tells its peers about its fabric.
struct FabricHint {
  LinkLayer link = LinkLayer::kUnknown;
  std::string name{};          // the user's; empty: none
  uint64_t subnet_prefix = 0;  // InfiniBand
};

FabricHint HintOf(const RdmaPort& port);
Reach ReachOf(const FabricHint& a, const FabricHint& b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_TOPOLOGY_RAILS_H_
