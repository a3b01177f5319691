// `kvxfer doctor host:port`: tries each backend end to end with a `kvxfer serve`.
#ifndef KVXFER_CLI_DOCTOR_PEER_H_
#define KVXFER_CLI_DOCTOR_PEER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/peer.h"
#include "src/cli/common/json_util.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {

struct PeerCheckOptions {
  std::string backends{};  // --backend; empty: DefaultBackends()
  std::string listen{};    // --listen

  bool IsDefault() const { return backends.empty() && listen.empty(); }
};

// The result of trying one backend.
struct PeerPath {
  std::string backend{};
  bool reached = false;  // bytes went there and back and were compared
  // kWarning: reached, but not over every rail.
  Severity severity = Severity::kOk;
  std::string why{};  // why it does not reach the server, or its path
  std::string fix{};
  uint32_t rails = 0;
  std::vector<RailExplanation> each_rail{};
  double rtt_min_us = 0;  // a notified write of 64 bytes and its answer
  double rtt_p50_us = 0;
  double rtt_max_us = 0;
  double gbps = 0;  // of a short sample of writes, in Gb/s
  Json here{};      // Agent::Explain on this side while connected
  Json there{};     // the same on the server's side
};

struct PeerReport {
  std::string server{};
  std::string chosen{};  // the backend that transfers would take; empty: none
  std::vector<PeerPath> paths{};
};

// Unavailable: nothing answers there. InvalidArgument: a bad address, an unknown backend, or a
// server of another version. The report says what a backend lacks.
absl::StatusOr<PeerReport> CheckPeer(const std::string& server, const PeerCheckOptions& options);

// Makes `path` a warning if some of its rails are down.
void JudgeRails(PeerPath& path);

std::string PeerText(const PeerReport& report);
Json PeerJson(const PeerReport& report);
// Aborted if a backend has a problem, or no backend reaches the server. With `strict`, also if a
// backend has a warning.
absl::Status PeerStatus(const PeerReport& report, bool strict);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_PEER_H_
