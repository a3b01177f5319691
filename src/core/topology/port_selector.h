// Selects the ports that the user wants, and applies the user's names for fabrics.
//
// A selector is a list of patterns separated by commas. A port is selected if no exclusion matches
// it, and a pattern matches it or all patterns are exclusions. A pattern is [^][kind:]text; ^ makes
// it an exclusion.
//
//   mlx5_*                  device, with globs (* ? [...])
//   mlx5_0:1                device and port
//   ibp60s0                 netdev, with globs
//   Fabric1                 fabric, with globs: the user's name or "ib/fe80::", "eth", "efa"
//   3c:00, 0000:3c:00.0     PCI address; without a function: all functions of the device, and
//                           their virtual functions, at any address
//   10.77.0.0/24, fe80::/64 IP network of the port's netdev or of one of its GIDs; on InfiniBand:
//                           the subnet prefix
//   10.77.0.5, fd00::5      this address of the port's netdev or GID, and no other
//
// `kind` is device, netdev, fabric, pci or subnet, and restricts the text to that meaning. Without
// it, any of these meanings may match. Device numbers are random in pods, so use the other kinds
// there.
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
  // InvalidArgument, quoting the pattern: an empty pattern, or text that is no address although its
  // kind requires one. An empty `text` selects every port.
  static absl::StatusOr<PortSelector> Parse(std::string_view text);

  bool Matches(const Topology& topology, const RdmaPort& port) const;
  // Whether the port is selected, and one of the patterns means this port alone: its name without
  // globs, its PCI address with the function, or one of its addresses.
  bool Names(const Topology& topology, const RdmaPort& port) const;
  // Indices into `topology.ports`, in their order. NotFound: a pattern that is no exclusion matches
  // no port, or no port is left. The message lists the existing ports.
  absl::StatusOr<std::vector<size_t>> Select(const Topology& topology) const;

  // The text as it was given; empty: every port.
  const std::string& text() const { return text_; }

 private:
  enum class Kind : uint8_t { kAny, kDevice, kNetdev, kFabric, kPci, kSubnet };
  struct Pattern {
    Kind kind = Kind::kAny;
    bool exclude = false;
    std::string text{};                // without ^ and kind
    std::optional<PciAddress> pci{};   // `text` as a PCI address, if it is one
    bool every_function = false;       // `pci` was given without a function
    std::optional<IpSubnet> subnet{};  // `text` as an address or network, if it is one
    bool network = false;              // `subnet` was given with a prefix length
  };
  static absl::StatusOr<Pattern> ParsePattern(std::string_view text);
  static bool PatternMatches(const Pattern& pattern, const Topology& topology,
                             const RdmaPort& port);
  static bool PatternNames(const Pattern& pattern, const Topology& topology, const RdmaPort& port);

  std::string text_;
  std::vector<Pattern> patterns_;
};

// A user's name for a fabric, which consists of the ports that `ports` selects.
struct FabricName {
  std::string name{};
  PortSelector ports{};

  // "Fabric1=ibp60s0,ibp77s0": a name and a non-empty selector.
  static absl::StatusOr<FabricName> Parse(std::string_view text);
};

// Sets the `fabric` of the ports that `names` select, and of the other ports on the same wires.
// NotFound: a selector matches no port. InvalidArgument: a port would be in two fabrics.
absl::Status NameFabrics(const std::vector<FabricName>& names, Topology& topology);

}  // namespace kvxfer

#endif  // KVXFER_CORE_TOPOLOGY_PORT_SELECTOR_H_
