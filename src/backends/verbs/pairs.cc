#include "src/backends/verbs/pairs.h"

#include <algorithm>
#include <tuple>

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

bool IsDown(const PortInfo& port) { return port.gid == Gid{}; }

class Chooser {
 public:
  Chooser(std::span<const PortInfo> local, std::span<const PortInfo> remote)
      : local_(local), remote_(remote), local_uses_(local.size()), remote_uses_(remote.size()) {}

  void Use(const Pair& pair) {
    ++local_uses_[pair.local];
    ++remote_uses_[pair.remote];
    used_.push_back(pair);
  }
  void Exclude(std::span<const Pair> pairs) {
    excluded_.insert(excluded_.end(), pairs.begin(), pairs.end());
  }
  // `fresh`: one of its ports must be in no pair yet.
  std::optional<Pair> Best(bool fresh) const {
    std::optional<Pair> best;
    for (size_t l = 0; l < local_.size(); ++l) {
      for (size_t r = 0; r < remote_.size(); ++r) {
        const Pair pair{l, r};
        if (!WhyApart(local_[l], remote_[r]).empty() || Has(used_, pair) || Has(excluded_, pair)) {
          continue;
        }
        if (fresh && local_uses_[l] > 0 && remote_uses_[r] > 0) continue;
        if (!best || Cost(pair) < Cost(*best)) best = pair;
      }
    }
    return best;
  }

 private:
  static bool Has(const std::vector<Pair>& pairs, const Pair& pair) {
    return std::ranges::find(pairs, pair) != pairs.end();
  }
  std::tuple<bool, bool, size_t, size_t, size_t> Cost(const Pair& pair) const {
    const bool down = IsDown(local_[pair.local]) || IsDown(remote_[pair.remote]);
    const bool apart = !SameSubnet(local_[pair.local].gid, remote_[pair.remote].gid);
    const size_t uses = local_uses_[pair.local] + remote_uses_[pair.remote];
    return {down, apart, uses, std::max(pair.local, pair.remote), pair.local + pair.remote};
  }

  const std::span<const PortInfo> local_;
  const std::span<const PortInfo> remote_;
  std::vector<size_t> local_uses_;
  std::vector<size_t> remote_uses_;
  std::vector<Pair> used_;
  std::vector<Pair> excluded_;
};

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
  if (IsDown(a) || IsDown(b)) return {};
  if (!named && a.link_layer == IBV_LINK_LAYER_INFINIBAND && !SameSubnet(a.gid, b.gid)) {
    return absl::StrCat("the subnet prefixes of ", a.name, " and ", b.name, " differ");
  }
  return {};
}

std::vector<Pair> ChoosePairs(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                              size_t most) {
  Chooser chooser(local, remote);
  std::vector<Pair> out;
  while (out.size() < most) {
    const std::optional<Pair> best = chooser.Best(/*fresh=*/true);
    if (!best) break;
    chooser.Use(*best);
    out.push_back(*best);
  }
  return out;
}

std::optional<Pair> ChooseOther(std::span<const PortInfo> local, std::span<const PortInfo> remote,
                                std::span<const Pair> used, std::span<const Pair> bad) {
  Chooser chooser(local, remote);
  for (const Pair& pair : used) chooser.Use(pair);
  chooser.Exclude(bad);
  return chooser.Best(/*fresh=*/false);
}

}  // namespace kvxfer::verbs
