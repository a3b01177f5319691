// One port of a local device: what peers must know to reach it, and what this side needs to use it.
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

// What a peer is told of a port.
struct PortInfo {
  std::string name{};    // "mlx5_0:1"
  std::string fabric{};  // as the user calls it; may be empty
  uint8_t device = 0;    // counted by its owner; keys are per device
  uint8_t link_layer = IBV_LINK_LAYER_UNSPECIFIED;
  uint8_t mtu = 0;    // as ibv_mtu
  uint16_t lid = 0;   // InfiniBand
  uint32_t mbps = 0;  // nominal, 10^6 bits per second; 0: not known
  Gid gid{};

  bool operator==(const PortInfo&) const = default;
};

struct LocalPort {
  PortInfo info{};
  uint8_t number = 1;  // at its device
  uint8_t gid_index = 0;
  uint16_t pkey_index = 0;
  uint16_t p_key = 0;  // as it stands there
  bool active = false;
  bool needs_grh = false;  // InfiniBand: the subnet manager asks for it
  absl::Status why{};      // it is not used although its link is up; then it is not active either
};

// The entry of a GID table to use. `wanted` < 0: on Ethernet the first of RoCE v2, IPv4 before
// global IPv6 before link-local; on InfiniBand the first. Holes and empty entries are skipped.
// NotFound says what there is.
absl::StatusOr<uint32_t> ChooseGid(std::span<const ibv_gid_entry> entries, uint8_t link_layer,
                                   int wanted);

// Reads the port anew. A port that is not active is no error, nor is what cannot work when it is
// (no such GID, no such P_Key): the port says so itself, and peers are told of it without a GID.
// GID and P_Key of `before` are kept where they still stand in their places, for queue pairs use
// them: a table that grows is nothing to those.
absl::StatusOr<LocalPort> ReadPort(Ibv& ibv, ibv_context* context, const std::string& device,
                                   uint8_t number, const VerbsOptions& options,
                                   const LocalPort* before = nullptr);

// All entries of the table that are not holes.
std::vector<ibv_gid_entry> ReadGids(Ibv& ibv, ibv_context* context, uint8_t number, int length);

LinkLayer LinkLayerOf(uint8_t link_layer);
// What the port tells of the fabric that it is in.
FabricHint Hint(const PortInfo& port);
uint32_t MtuBytes(uint8_t mtu);
// The largest ibv_mtu that is no more than `bytes`.
uint8_t MtuFromBytes(uint32_t bytes);

// Of options that name ports one by one (port_choice.h): the fabric of port "device:number", empty
// where it has no name, and whether the port is listed. Without a list every port is.
std::string FabricOf(const VerbsOptions& options, const std::string& device, uint8_t number);
bool IsWanted(const VerbsOptions& options, const std::string& device, uint8_t number);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PORT_H_
