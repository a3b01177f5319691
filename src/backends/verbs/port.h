// One port of a local device: what peers must know to reach it, and what this side needs to use it.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_VERBS_PORT_H_
#define KVXFER_BACKENDS_VERBS_PORT_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/options.h"
#include "src/backends/verbs/ibv.h"

namespace kvxfer::verbs {

using Gid = std::array<uint8_t, 16>;

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
absl::StatusOr<LocalPort> ReadPort(Ibv& ibv, ibv_context* context, const std::string& device,
                                   uint8_t number, const VerbsOptions& options);

std::string GidText(const Gid& gid);
uint32_t MtuBytes(uint8_t mtu);
// The largest ibv_mtu that is no more than `bytes`.
uint8_t MtuFromBytes(uint32_t bytes);

// The fabric that the user names for port "device:number"; empty where none.
std::string FabricOf(const VerbsOptions& options, const std::string& device, uint8_t number);
// Whether the user's list takes that port.
bool IsWanted(const VerbsOptions& options, const std::string& device, uint8_t number);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_PORT_H_
