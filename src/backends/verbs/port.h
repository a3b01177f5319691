// One port of a local device: what peers need to reach it, and what this side needs to use it.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_VERBS_PORT_H_
#define KVXFER_BACKENDS_VERBS_PORT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/ibv.h"
#include "src/backends/verbs/options.h"
#include "src/core/topology/rails.h"
#include "src/core/topology/topology.h"

namespace kvxfer::verbs {

using Gid = IpAddress;

// What a peer receives about a port.
struct PortInfo {
  std::string name{};    // "mlx5_0:1"
  std::string fabric{};  // the user's name for it; may be empty
  uint8_t device = 0;    // counted by its owner; keys are per device
  uint8_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  uint8_t mtu = 0;    // as ibv_mtu
  uint16_t lid = 0;   // InfiniBand
  uint32_t mbps = 0;  // nominal, 10^6 bits per second; 0: unknown
  Gid gid{};

  bool operator==(const PortInfo&) const = default;
};

struct LocalPort {
  PortInfo info{};
  uint8_t number = 1;  // at its device
  uint8_t gid_index = 0;
  uint16_t pkey_index = 0;
  uint16_t p_key = 0;  // the table's entry
  bool active = false;
  bool needs_grh = false;  // InfiniBand: the subnet manager requires it
  absl::Status why{};      // why it is not used although its link is up; it is not active then
};

// The GID table entry to use. `wanted` < 0: on Ethernet the first RoCE v2 entry, IPv4 before global
// IPv6 before link-local; on InfiniBand the first entry. Holes and empty entries are skipped.
// NotFound lists what exists.
absl::StatusOr<uint32_t> ChooseGid(std::span<const ibv_gid_entry> entries, uint8_t link_layer,
                                   int wanted);

// Reads the port again. A port that is not active is not an error; neither is one that is
// misconfigured (no such GID, no such P_Key): `why` says so, and peers receive it without a GID.
// The GID and P_Key of `before` are kept if they are still in their places, because queue pairs use
// them: a table that only grows does not affect these.
absl::StatusOr<LocalPort> ReadPort(Ibv& ibv, ibv_context* context, const std::string& device,
                                   uint8_t number, const VerbsOptions& options,
                                   const LocalPort* before = nullptr);

// All entries of the table that are not holes.
std::vector<ibv_gid_entry> ReadGids(Ibv& ibv, ibv_context* context, uint8_t number, int length);

LinkLayer LinkLayerOf(uint8_t link_layer);
// What the port's attributes say about the fabric that it is in.
FabricHint Hint(const PortInfo& port);
uint32_t MtuBytes(uint8_t mtu);
// The largest ibv_mtu that is not larger than `bytes`.
uint8_t MtuFromBytes(uint32_t bytes);

// For options that name each port (port_choice.h): the fabric name of port "device:number", empty
// if it has none; and whether the port is listed. Without a list every port is.
std::string FabricOf(const VerbsOptions& options, const std::string& device, uint8_t number);
bool IsWanted(const VerbsOptions& options, const std::string& device, uint8_t number);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PORT_H_
