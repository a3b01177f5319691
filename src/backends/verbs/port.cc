#include "src/backends/verbs/port.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {
namespace {

// The most GIDs that are examined per table; tables are larger than their use.
constexpr int kMaxGids = 256;

Gid Bytes(const ibv_gid& gid) {
  Gid out;
  std::memcpy(out.data(), gid.raw, out.size());
  return out;
}

bool IsMapped(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::equal(kPrefix.begin(), kPrefix.end(), gid.begin());
}

bool IsLinkLocal(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

// Smaller is better.
int Rank(const Gid& gid) { return IsMapped(gid) ? 0 : IsLinkLocal(gid) ? 2 : 1; }

bool Usable(const ibv_gid_entry& entry, uint8_t link_layer) {
  if (Bytes(entry.gid) == Gid{}) return false;
  return link_layer != IBV_LINK_LAYER_ETHERNET || entry.gid_type == IBV_GID_TYPE_ROCE_V2;
}

bool StillThere(std::span<const ibv_gid_entry> entries, uint8_t link_layer,
                const LocalPort& before) {
  return std::ranges::any_of(entries, [&](const ibv_gid_entry& entry) {
    return Usable(entry, link_layer) && entry.gid_index == before.gid_index &&
           Bytes(entry.gid) == before.info.gid;
  });
}

std::string WhatThereIs(std::span<const ibv_gid_entry> entries, uint8_t link_layer) {
  std::string out;
  for (const ibv_gid_entry& entry : entries) {
    if (!Usable(entry, link_layer)) continue;
    absl::StrAppend(&out, out.empty() ? "" : ", ", entry.gid_index, " (",
                    ToString(Bytes(entry.gid)), ")");
  }
  return out.empty() ? "none that can be used" : out;
}

// The upper bit is the kind of membership. Limited members can talk only to full ones, so if the
// table has a partition twice, the full entry is taken.
absl::StatusOr<uint16_t> FindPkey(Ibv& ibv, ibv_context* context, uint8_t number, int entries,
                                  uint32_t wanted) {
  std::string there;
  std::optional<uint16_t> limited;
  for (int i = 0; i < entries; ++i) {
    uint16_t pkey = 0;
    if (ibv.QueryPkey(context, number, i, &pkey) != 0 || pkey == 0) continue;
    absl::StrAppend(&there, there.empty() ? "" : ", ", "0x", absl::Hex(pkey));
    if ((pkey & 0x7fff) != (wanted & 0x7fff)) continue;
    if ((pkey & 0x8000) != 0) return static_cast<uint16_t>(i);
    if (!limited) limited = static_cast<uint16_t>(i);
  }
  if (limited) return *limited;
  return absl::NotFoundError(
      absl::StrCat("P_Key 0x", absl::Hex(wanted), " is not in the port's table, which has ",
                   there.empty() ? "none" : there,
                   "; have the subnet manager add it, or set `verbs.p_key` (KVXFER_VERBS_P_KEY)"));
}

// 0: there is no such entry.
uint16_t PkeyAt(Ibv& ibv, ibv_context* context, uint8_t number, uint16_t index) {
  uint16_t pkey = 0;
  return ibv.QueryPkey(context, number, index, &pkey) == 0 ? pkey : 0;
}

// In 10^6 bits per second, after encoding.
uint32_t Speed(const ibv_port_attr& attr) {
  const uint32_t lanes = attr.active_width == 1    ? 1
                         : attr.active_width == 2  ? 4
                         : attr.active_width == 4  ? 8
                         : attr.active_width == 8  ? 12
                         : attr.active_width == 16 ? 2
                                                   : 0;
  const uint32_t lane = attr.active_speed == 1     ? 2000
                        : attr.active_speed == 2   ? 4000
                        : attr.active_speed == 4   ? 8000
                        : attr.active_speed == 8   ? 10000
                        : attr.active_speed == 16  ? 14000
                        : attr.active_speed == 32  ? 25000
                        : attr.active_speed == 64  ? 50000
                        : attr.active_speed == 128 ? 100000
                                                   : 0;
  return lanes * lane;
}

LocalPort OfNoUse(LocalPort port, const absl::Status& why) {
  port.active = false;
  port.info.gid = {};
  port.why = Annotate(why, port.info.name);
  return port;
}

}  // namespace

std::vector<ibv_gid_entry> ReadGids(Ibv& ibv, ibv_context* context, uint8_t number, int length) {
  std::vector<ibv_gid_entry> out;
  for (int i = 0; i < std::min(length, kMaxGids); ++i) {
    ibv_gid_entry entry{};
    // A hole: the table is sparse.
    if (ibv.QueryGid(context, number, static_cast<uint32_t>(i), &entry) != 0) continue;
    entry.gid_index = static_cast<uint32_t>(i);
    out.push_back(entry);
  }
  return out;
}

LinkLayer LinkLayerOf(uint8_t link_layer) {
  return link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::kEthernet : LinkLayer::kInfiniBand;
}

FabricHint Hint(const PortInfo& port) {
  FabricHint hint{.link = LinkLayerOf(port.link_layer), .name = port.fabric};
  if (hint.link != LinkLayer::kInfiniBand) return hint;
  for (size_t i = 0; i < 8; ++i) hint.subnet_prefix = hint.subnet_prefix << 8 | port.gid[i];
  return hint;
}

absl::StatusOr<uint32_t> ChooseGid(std::span<const ibv_gid_entry> entries, uint8_t link_layer,
                                   int wanted) {
  const ibv_gid_entry* best = nullptr;
  for (const ibv_gid_entry& entry : entries) {
    if (!Usable(entry, link_layer)) continue;
    if (wanted >= 0 && entry.gid_index != static_cast<uint32_t>(wanted)) continue;
    if (best == nullptr || (link_layer == IBV_LINK_LAYER_ETHERNET &&
                            Rank(Bytes(entry.gid)) < Rank(Bytes(best->gid)))) {
      best = &entry;
    }
  }
  if (best != nullptr) return best->gid_index;
  const std::string there = WhatThereIs(entries, link_layer);
  if (wanted >= 0) {
    return absl::NotFoundError(
        absl::StrCat("GID index ", wanted, " is empty or not of RoCE v2; those that are: ", there,
                     "; set `verbs.gid_index` (KVXFER_VERBS_GID_INDEX) to one of them, or to -1"));
  }
  return absl::NotFoundError(
      absl::StrCat("the GID table has ", there,
                   "; give the port's network interface an IP address and set it up"));
}

absl::StatusOr<LocalPort> ReadPort(Ibv& ibv, ibv_context* context, const std::string& device,
                                   uint8_t number, const VerbsOptions& options,
                                   const LocalPort* before) {
  ibv_port_attr attr{};
  if (const int error = ibv.QueryPort(context, number, &attr); error != 0) {
    return absl::UnavailableError(ErrnoText("ibv_query_port", error));
  }
  LocalPort port;
  port.number = number;
  port.active = attr.state == IBV_PORT_ACTIVE || attr.state == IBV_PORT_ACTIVE_DEFER;
  port.info = {.name = absl::StrCat(device, ":", number),
               .fabric = FabricOf(options, device, number),
               .link_layer = attr.link_layer == IBV_LINK_LAYER_ETHERNET
                                 ? uint8_t{IBV_LINK_LAYER_ETHERNET}
                                 : uint8_t{IBV_LINK_LAYER_INFINIBAND},
               // A port that is down may report any value.
               .mtu = static_cast<uint8_t>(std::clamp(attr.active_mtu, IBV_MTU_256, IBV_MTU_4096)),
               .lid = attr.lid,
               .mbps = Speed(attr)};
  if (options.mtu != 0) port.info.mtu = std::min(port.info.mtu, MtuFromBytes(options.mtu));
  if (!port.active) return port;
  const std::vector<ibv_gid_entry> gids = ReadGids(ibv, context, number, attr.gid_tbl_len);
  absl::StatusOr<uint32_t> index =
      before != nullptr && StillThere(gids, port.info.link_layer, *before)
          ? absl::StatusOr<uint32_t>(before->gid_index)
          : ChooseGid(gids, port.info.link_layer, options.gid_index);
  if (!index.ok()) return OfNoUse(std::move(port), index.status());
  const auto chosen = std::ranges::find(gids, *index, &ibv_gid_entry::gid_index);
  port.gid_index = static_cast<uint8_t>(*index);
  port.info.gid = Bytes(chosen->gid);
  port.needs_grh =
      port.info.link_layer == IBV_LINK_LAYER_ETHERNET || (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
  absl::StatusOr<uint16_t> pkey =
      before != nullptr && before->p_key != 0 &&
              PkeyAt(ibv, context, number, before->pkey_index) == before->p_key
          ? absl::StatusOr<uint16_t>(before->pkey_index)
          : FindPkey(ibv, context, number, attr.pkey_tbl_len, options.p_key);
  if (!pkey.ok()) return OfNoUse(std::move(port), pkey.status());
  port.pkey_index = *pkey;
  port.p_key = PkeyAt(ibv, context, number, *pkey);
  return port;
}

uint32_t MtuBytes(uint8_t mtu) { return mtu >= 1 && mtu <= 5 ? 128u << mtu : 0; }

uint8_t MtuFromBytes(uint32_t bytes) {
  uint8_t mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && MtuBytes(static_cast<uint8_t>(mtu + 1)) <= bytes) ++mtu;
  return mtu;
}

std::string FabricOf(const VerbsOptions& options, const std::string& device, uint8_t number) {
  const std::string port = absl::StrCat("=", device, ":", number);
  for (const std::string& entry : options.fabrics) {
    if (entry.ends_with(port)) return entry.substr(0, entry.size() - port.size());
  }
  return {};
}

bool IsWanted(const VerbsOptions& options, const std::string& device, uint8_t number) {
  if (options.devices.empty()) return true;
  const std::string port = absl::StrCat(device, ":", number);
  return std::ranges::find(options.devices, port) != options.devices.end();
}

}  // namespace kvxfer::verbs
