// How functions of the program hand on errors.

#ifndef KVXFER_CLI_COMMON_ERRORS_H_
#define KVXFER_CLI_COMMON_ERRORS_H_

#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace kvxfer::cli {

// InvalidArgument with these parts as its message: the user's mistake.
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Puts the value into `to`, or returns the error.
template <typename To, typename From>
absl::Status Into(To& to, absl::StatusOr<From> from) {
  if (!from.ok()) return from.status();
  to = *std::move(from);
  return absl::OkStatus();
}

inline absl::Status FirstError(std::initializer_list<absl::Status> checks) {
  for (const absl::Status& status : checks) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_ERRORS_H_
