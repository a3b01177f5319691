// Chooses the NIC ports that serve memory at a place, nearest first, and explains why others do
// not.
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
  // Among the nearest of its fabric: transfers use these rails as long as they can.
  bool near = false;
  // A byte costs 1 + penalty relative to a near rail, whose penalty is 0; at most kMaxPenalty.
  uint32_t penalty = 0;
};

struct LeftOut {
  size_t port = 0;
  std::string why{};  // for a person, with how to fix it
};

// Leaves one port per wire (WireOf) and user-named fabric in `ports` and returns the others: more
// ports on one wire have no more bandwidth. It keeps the first port that the selector names; else
// one that can carry data now; else one that can once its link is up; else the physical function's;
// else the first.
std::vector<LeftOut> LeaveOutSharers(const Topology& topology, const PortSelector& selector,
                                     std::vector<size_t>& ports);

struct RailPlan {
  std::vector<PlannedRail>
      // Nearest first; equal distances are ordered by distance between NUMA nodes, then as in
      // Topology.
      rails{};
  std::vector<LeftOut> left_out{};
};

// Nearness is judged within each fabric, because a peer may be in only one of them. Among the ports
// on one wire that can carry data, one becomes a rail (LeaveOutSharers).
RailPlan PlanRails(const Topology& topology, const MemoryPlace& place,
                   const PortSelector& selector);

// The PlannedRail::penalty of each of `ports`, in any state, for memory at `place`.
std::vector<uint32_t> Penalties(const Topology& topology, const MemoryPlace& place,
                                std::span<const size_t> ports);

// Why `port` cannot carry data now, and how to fix it. Empty: it can.
std::string WhyUnusable(const Topology& topology, const RdmaPort& port);

// What is known in advance about whether two ports, on one host or on two, reach each other. Only a
// successful probe lets a pair carry data; this decides which pairs to probe, and in which order.
enum class Reach : uint8_t {
  kNo,        // do not probe: different link layers, or the user named different fabrics
  kUnlikely,  // different InfiniBand subnets
  kMaybe,     // no evidence against it: Ethernet, EFA, or the default subnet prefix on both sides
  kLikely,    // the same fabric name, or the same subnet prefix, which somebody configured
};

// What a port reports to peers about its fabric.
struct FabricHint {
  LinkLayer link = LinkLayer::kUnknown;
  std::string name{};          // the user's name; empty: none
  uint64_t subnet_prefix = 0;  // InfiniBand
};

Reach ReachOf(const FabricHint& a, const FabricHint& b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_TOPOLOGY_RAILS_H_
