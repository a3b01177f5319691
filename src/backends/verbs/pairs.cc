#include "src/backends/verbs/pairs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvxfer::verbs {
namespace {

const char* LayerName(uint8_t link_layer) {
  return link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand";
}

// As far as the GIDs tell: IPv4 addresses with 24 bits in common, else the 64 bits of the prefix.
bool SameSubnet(const Gid& a, const Gid& b) {
  const bool v4 = a[10] == 0xff && a[11] == 0xff && a[0] == 0;
  const size_t bytes = v4 ? 15 : 8;
  return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(bytes), b.begin());
}

PairTable Table(std::span<const PortInfo> local, std::span<const PortInfo> remote) {
  PairTable table(local.size(), remote.size());
  for (size_t l = 0; l < local.size(); ++l) {
    for (size_t r = 0; r < remote.size(); ++r) {
      if (!WhyApart(local[l], remote[r]).empty()) continue;
      table.Set(l, r, SameSubnet(local[l].gid, remote[r].gid) ? 0 : 1);
    }
  }
  return table;
}

}  // namespace

std::string WhyApart(const PortInfo& a, const PortInfo& b) {
  if (a.link_layer != b.link_layer) {
    return absl::StrCat(a.name, " is ", LayerName(a.link_layer), ", ", b.name, " is ",
                        LayerName(b.link_layer));
  }
  const bool named = !a.fabric.empty() && !b.fabric.empty();
  if (named && a.fabric != b.fabric) {
    return absl::StrCat(a.name, " is in fabric ", a.fabric, ", ", b.name, " in ", b.fabric);
  }
  if (!named && a.link_layer == IBV_LINK_LAYER_INFINIBAND && !SameSubnet(a.gid, b.gid)) {
    return absl::StrCat("the subnet prefixes of ", a.name, " and ", b.name, " differ");
  }
  return {};
}

std::vector<Pair> ChoosePairs(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                              size_t most) {
  return ChooseRailPairs(Table(local, remote), most);
}

std::optional<Pair> ChooseOther(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                                std::span<const Pair> used, std::span<const Pair> bad) {
  return ChooseOtherPair(Table(local, remote), used, bad);
}

}  // namespace kvxfer::verbs
