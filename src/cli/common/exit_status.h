// The exit statuses of `kvxfer`, the one table of them; docs/cli.md repeats it for users.
#ifndef KVXFER_CLI_COMMON_EXIT_STATUS_H_
#define KVXFER_CLI_COMMON_EXIT_STATUS_H_

#include "absl/status/status.h"

namespace kvxfer::cli {

enum class ExitStatus : int {
  kOk = 0,
  kFailed = 1,       // a transfer failed, bytes are not what they must be, or output was lost
  kUsage = 2,        // bad option, argument or input file
  kUnreachable = 3,  // the peer cannot be reached, or was lost
  kTimedOut = 4,     // nothing failed, but the deadline passed
  kNotUsable = 5,    // what was asked for does not work on this host or between these peers
};

// Every subcommand ends with a Status; this is the only place that turns one into an exit status.
constexpr ExitStatus ExitStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return ExitStatus::kOk;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return ExitStatus::kUsage;
    case absl::StatusCode::kUnavailable:
      return ExitStatus::kUnreachable;
    case absl::StatusCode::kDeadlineExceeded:
      return ExitStatus::kTimedOut;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnimplemented:
      return ExitStatus::kNotUsable;
    default:
      return ExitStatus::kFailed;
  }
}

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_EXIT_STATUS_H_
