// What an agent tells about its peers: events, and which path is taken and why.
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
  kJoined,   // first connection of this incarnation is up
  kSuspect,  // connected, but silent: AgentOptions::suspect_after
  kLost,     // connection lost, or the peer's process is gone
  kBack,     // heard again after kSuspect or kLost
};

struct PeerEvent {
  std::string peer{};
  Incarnation incarnation{};
  PeerEventKind kind = PeerEventKind::kJoined;
  absl::Status cause{};  // OK for kJoined and kBack
};

const char* ToString(PeerEventKind kind);

// One rail of a connection that is up.
struct RailExplanation {
  std::string name{};  // e.g. "mlx5_0:1 → mlx5_2:1"; empty: the backend has no word for it
  bool up = true;
  double bytes_per_second = 0;  // as measured lately, or else the nominal speed
  Duration round_trip{};        // of the probe that opened it; 0: there was none
  Duration down_for{};          // while it is not up
  std::string why{};            // why it is not, or was not when it failed last; empty: never
};

// One backend's answer to "how do you reach this peer?".
struct PathExplanation {
  std::string backend{};
  bool usable = false;
  // Carries large transfers that do not name a backend; `why` says where small ones go elsewhere.
  bool chosen = false;
  bool connected = false;  // a connection is up now
  uint32_t rails = 0;
  std::vector<RailExplanation> each_rail{};  // while connected
  // As seen in the last minute, of transfers that kept the path busy and of small ones; 0: not.
  double bytes_per_second = 0;
  Duration latency{};
  std::string why{};  // why not usable, or what the path is, e.g. "mapped memfd and cross-memory"
};

// How transfers go from one kind of memory of this agent to one of the peer's.
struct MemoryExplanation {
  MemoryKind local = MemoryKind::kHost;
  MemoryKind remote = MemoryKind::kHost;
  std::string backend{};  // that carries them; empty: none does
  bool staged = false;    // by way of pinned host memory
  std::string why{};      // no backend, or staged, and what is missing
};

struct Explanation {
  std::string peer{};
  Incarnation incarnation{};
  std::string host{};  // the peer's host name
  std::vector<PathExplanation> paths{};
  // Each pair of kinds, where one of the two has registered GPU memory; else empty: then all of it
  // goes over the chosen path.
  std::vector<MemoryExplanation> memory{};
  std::string ToString() const;  // a few lines for a person
};

}  // namespace kvxfer

#endif  // KVXFER_PEER_H_
