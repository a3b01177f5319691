// Which ports the user wants, and what the user calls their fabrics.
//
// A selector is a list of patterns with commas. A port is selected if one of the patterns names it,
// or all patterns are exclusions, and no exclusion names it. Pattern: [^][kind:]text, ^ excludes.
//
//   mlx5_*                  device, with globs (* ? [...])
//   mlx5_0:1                device and port
//   ibp60s0                 netdev, with globs
//   Fabric1                 fabric, with globs: the user's name or "ib/fe80::", "eth", "efa"
//   3c:00, 0000:3c:00.0     PCI address; without a function: all functions of the device, and
//                           their virtual functions, wherever these are
//   10.77.0.0/24, fe80::/64 IP network that the port's netdev or a GID is in; InfiniBand: the
//                           subnet prefix
//   10.77.0.5, fd00::5      that address of the port's netdev or GID, and no other
//
// `kind` is device, netdev, fabric, pci or subnet and takes the text for that alone; without it,
// whichever of these matches. Numbers of devices are random in pods: prefer the others there.
//
// Thread-safety: plain values; const methods from any thread.
//
// Example:
//   auto selector = kvxfer::PortSelector::Parse("fabric:Fabric1,^ibp94s0");
//   auto ports = selector->Select(topology);   // indices into topology.ports

#ifndef KVXFER_CORE_TOPOLOGY_PORT_SELECTOR_H_
#define KVXFER_CORE_TOPOLOGY_PORT_SELECTOR_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

class PortSelector {
 public:
  // Selects every port.
  PortSelector() = default;
  // InvalidArgument, quoting the pattern: empty pattern, or text that is no address where the kind
  // wants one. An empty `text` selects every port.
  static absl::StatusOr<PortSelector> Parse(std::string_view text);

  bool Matches(const Topology& topology, const RdmaPort& port) const;
  // Matches, by a pattern that means this port alone: its name without globs, its PCI address with
  // the function, an address of its own.
  bool Names(const Topology& topology, const RdmaPort& port) const;
  // Indices into `topology.ports`, in their order. NotFound where a pattern, but an exclusion,
  // matches no port, or nothing is left: says what ports there are.
  absl::StatusOr<std::vector<size_t>> Select(const Topology& topology) const;

  // As it was given; empty: every port.
  const std::string& text() const { return text_; }

 private:
  enum class Kind : uint8_t { kAny, kDevice, kNetdev, kFabric, kPci, kSubnet };
  struct Pattern {
    Kind kind = Kind::kAny;
    bool exclude = false;
    std::string text{};                // without ^ and kind
    std::optional<PciAddress> pci{};   // of `text`, where it is one
    bool every_function = false;       // `pci` was given without a function
    std::optional<IpSubnet> subnet{};  // of `text`, where it is one
    bool network = false;              // `subnet` was given with a prefix length
  };
  static absl::StatusOr<Pattern> ParsePattern(std::string_view text);
  static bool PatternMatches(const Pattern& pattern, const Topology& topology,
                             const RdmaPort& port);
  static bool PatternNames(const Pattern& pattern, const Topology& topology, const RdmaPort& port);

  std::string text_;
  std::vector<Pattern> patterns_;
};

// A name that the user gives to a fabric: its ports are those that `ports` selects.
struct FabricName {
  std::string name{};
  PortSelector ports{};

  // "Fabric1=ibp60s0,ibp77s0": a name, and a selector that is not empty.
  static absl::StatusOr<FabricName> Parse(std::string_view text);
};

// Sets the `fabric` of the ports that `names` select, and of the others of their wires. NotFound: a
// selector matches no port; InvalidArgument: a port would be in two fabrics.
absl::Status NameFabrics(const std::vector<FabricName>& names, Topology& topology);

}  // namespace kvxfer

#endif  // KVXFER_CORE_TOPOLOGY_PORT_SELECTOR_H_
