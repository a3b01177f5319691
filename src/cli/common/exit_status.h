// The exit statuses of `kvxfer`. This is their only table; docs/cli.md repeats it for users.
#ifndef KVXFER_CLI_COMMON_EXIT_STATUS_H_
#define KVXFER_CLI_COMMON_EXIT_STATUS_H_

#include <array>

#include "absl/status/status.h"
#include "kvxfer/types.h"

namespace kvxfer::cli {

enum class ExitStatus : int {
  kOk = 0,
  kFailed = 1,
  kUsage = 2,
  kUnreachable = 3,
  kTimedOut = 4,
  kNotUsable = 5,
};

struct ExitStatusText {
  ExitStatus status;
  const char* text;
};
inline constexpr std::array kExitStatusTexts = {
    ExitStatusText{ExitStatus::kOk, "Success."},
    ExitStatusText{ExitStatus::kFailed,
                   "A transfer failed, bytes are wrong, doctor found a problem, or the output "
                   "could not be written."},
    ExitStatusText{ExitStatus::kUsage, "An option, an argument or an input file is wrong."},
    ExitStatusText{ExitStatus::kUnreachable, "The peer cannot be reached, or was lost."},
    ExitStatusText{ExitStatus::kTimedOut, "The deadline passed, and nothing failed before."},
    ExitStatusText{ExitStatus::kNotUsable,
                   "This host, or this pair of peers, cannot do what was asked for."},
};

// Every subcommand ends with a Status. Only this function turns a Status into an exit status.
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
    case kTimedOut:
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
