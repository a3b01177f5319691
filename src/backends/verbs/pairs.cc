#include "src/backends/verbs/pairs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvxfer::verbs {
namespace {

// As far as GIDs show it: IPv4 addresses with 24 equal bits, or GIDs with an equal 64-bit prefix.
bool SameSubnet(const Gid& a, const Gid& b) {
  const bool v4 = a[10] == 0xff && a[11] == 0xff && a[0] == 0;
  const size_t bytes = v4 ? 15 : 8;
  return std::equal(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(bytes), b.begin());
}

// Also true for a port that is unusable as it is: it has no GID either.
bool IsDown(const PortInfo& port) { return port.gid == Gid{}; }

PairTable Table(std::span<const PortInfo> local, std::span<const PortInfo> remote) {
  PairTable table(local.size(), remote.size());
  for (size_t l = 0; l < local.size(); ++l) {
    for (size_t r = 0; r < remote.size(); ++r) {
      if (!WhyApart(local[l], remote[r]).empty()) continue;
      const bool down = IsDown(local[l]) || IsDown(remote[r]);
      const bool unlikely = ReachOf(Hint(local[l]), Hint(remote[r])) != Reach::kLikely;
      // Down ports come last, then uncertain fabrics, then other subnets.
      const bool apart = !SameSubnet(local[l].gid, remote[r].gid);
      table.Set(l, r, static_cast<uint8_t>(4 * down + 2 * unlikely + apart));
    }
  }
  return table;
}

}  // namespace

std::string WhyApart(const PortInfo& a, const PortInfo& b) {
  const FabricHint here = Hint(a);
  const FabricHint there = Hint(b);
  const Reach reach = ReachOf(here, there);
  if (reach != Reach::kNo && reach != Reach::kUnlikely) return {};
  if (here.link != there.link) {
    return absl::StrCat(a.name, " is ", ToString(here.link), ", ", b.name, " is ",
                        ToString(there.link));
  }
  if (reach == Reach::kNo) {
    return absl::StrCat(a.name, " is in fabric ", a.fabric, ", ", b.name, " in ", b.fabric);
  }
  if (IsDown(a) || IsDown(b)) return {};
  return absl::StrCat("the subnet prefixes of ", a.name, " and ", b.name,
                      " differ; where there is a router between them, give both one fabric name");
}

absl::Status CheckPairs(std::span<const PortInfo> local, std::span<const PortInfo> remote) {
  std::string reasons;
  for (const PortInfo& a : local) {
    for (const PortInfo& b : remote) {
      const std::string why = WhyApart(a, b);
      if (why.empty()) return absl::OkStatus();
      absl::StrAppend(&reasons, "; ", why);
    }
  }
  return absl::UnavailableError(
      absl::StrCat("no port of ours can talk to one of the peer's", reasons));
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
