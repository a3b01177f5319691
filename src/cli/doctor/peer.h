// `kvxfer doctor host:port`: each backend tried end to end against a `kvxfer serve`.
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
  std::string backends{};  // comma separated; empty: all that kvxfer is made for
  std::string listen{};    // where answers come in; empty: where the server is reached from

  bool IsDefault() const { return backends.empty() && listen.empty(); }
};

// One backend, tried.
struct PeerPath {
  std::string backend{};
  bool reached = false;  // bytes went there and back, and were compared
  // kWarning: reached, but not over every rail.
  Severity severity = Severity::kOk;
  std::string why{};  // why it does not reach the server; else what its path is
  std::string fix{};
  uint32_t rails = 0;
  std::vector<RailExplanation> each_rail{};
  double rtt_min_us = 0;  // of a notified write of 64 bytes and its answer
  double rtt_p50_us = 0;
  double rtt_max_us = 0;
  double gbps = 0;  // of a short sample of writes, in Gb/s
  Json here{};      // Agent::Explain of this side, while connected
  Json there{};     // and of the server's
};

struct PeerReport {
  std::string server{};
  std::string chosen{};  // the backend that transfers would take; empty: none
  std::vector<PeerPath> paths{};
};

// Unavailable: nobody answers there; InvalidArgument: no address, no such backend, or a server of
// another version. What a backend lacks is in the report.
absl::StatusOr<PeerReport> CheckPeer(const std::string& server, const PeerCheckOptions& options);

// Makes a path that is reached, but not over each of its rails, a warning.
void JudgeRails(PeerPath& path);

std::string PeerText(const PeerReport& report);
Json PeerJson(const PeerReport& report);
// Aborted where a backend has a problem, or none reaches the server; `strict`: or a warning.
absl::Status PeerStatus(const PeerReport& report, bool strict);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DOCTOR_PEER_H_
