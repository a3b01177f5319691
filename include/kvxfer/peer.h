// What an agent reports about its peers: events, their regions, and which path it uses and why.
//
// Thread-safety: plain values.
//
// Example:
//   auto why = agent->Explain("decode-0");
//   if (why.ok()) std::puts(why->ToString().c_str());

#ifndef KVXFER_PEER_H_
#define KVXFER_PEER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/types.h"

namespace kvxfer {

enum class PeerEventKind : uint8_t {
  kJoined,   // the first connection to this incarnation is up
  kSuspect,  // connected but silent, perhaps only stopped; see AgentOptions::suspect_after
  kLost,     // the connection is lost, or the peer's process has ended
  kBack,     // heard from again after kSuspect or kLost
};

struct PeerEvent {
  std::string peer{};
  Incarnation incarnation{};
  PeerEventKind kind = PeerEventKind::kJoined;
  absl::Status cause{};  // OK for kJoined and kBack
};

const char* ToString(PeerEventKind kind);

// A region of a peer, as far as this agent knows it. Blocks of a Write or Read lie inside one such
// region each: Descriptor::address and PagedRegion::base are addresses of the peer.
struct PeerRegion {
  RegionId id = RegionId::kNone;  // the peer's
  uint64_t address = 0;           // of its first byte, in the peer's address space
  uint64_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device_id = 0;  // the peer's CUDA device; 0 for host memory
  Access access = Access::kNone;

  bool operator==(const PeerRegion&) const = default;
};

// One rail of a connection that is up.
struct RailExplanation {
  std::string name{};  // e.g. "mlx5_0:1 → mlx5_2:1"; empty if the backend gives no name
  bool up = true;
  double bytes_per_second = 0;  // measured recently, or else nominal
  Duration round_trip{};        // of the probe that opened the rail; 0: there was none
  Duration down_for{};          // how long it has been down; 0 while up
  std::string why{};            // why it is down, or why it last went down; empty: never
};

// How one backend reaches, or does not reach, the peer.
struct PathExplanation {
  std::string backend{};
  bool usable = false;
  // True: this path carries large transfers that do not name a backend; `why` says so if small
  // transfers take another path.
  bool chosen = false;
  bool connected = false;  // a connection is up now
  uint32_t rails = 0;
  std::vector<RailExplanation> each_rail{};  // empty unless connected
  // Measured over the last minute: throughput of the transfers that kept the path busy, and latency
  // of small transfers. 0: not measured.
  double bytes_per_second = 0;
  Duration latency{};
  std::string why{};  // why it is not usable, or else what the path is, e.g. "mapped memfd and
                      // cross-memory"
};

// How transfers move from one kind of this agent's memory to one kind of the peer's.
struct MemoryExplanation {
  MemoryKind local = MemoryKind::kHost;
  MemoryKind remote = MemoryKind::kHost;
  std::string backend{};  // the backend that carries them; empty: none does
  bool staged = false;    // through pinned host memory
  std::string why{};      // if no backend carries them or they are staged: what is missing
};

struct Explanation {
  std::string peer{};
  Incarnation incarnation{};
  std::string host{};  // the peer's host name
  std::vector<PathExplanation> paths{};
  // One entry for each pair of memory kinds, if either side has registered GPU memory. Empty
  // otherwise: all transfers then use the chosen path.
  std::vector<MemoryExplanation> memory{};
  std::string ToString() const;  // a few lines for a person
};

}  // namespace kvxfer

#endif  // KVXFER_PEER_H_
