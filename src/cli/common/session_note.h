// The notification payload of pings and benchmarks.
#ifndef KVXFER_CLI_COMMON_SESSION_NOTE_H_
#define KVXFER_CLI_COMMON_SESSION_NOTE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvxfer::cli {

// 24 bytes, little-endian.
struct SessionNote {
  uint64_t session = 0;
  uint64_t sequence = 0;  // number of the round trip, or of the transfer in the timeline; 0: none
  int64_t posted_ns = 0;  // MonotonicNanoseconds at the sender

  std::string Encode() const;
  static std::optional<SessionNote> Decode(std::string_view payload);
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_SESSION_NOTE_H_
