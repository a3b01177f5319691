// Debian's Abseil is built with its own string_view; this is the one place that converts.
#ifndef KVXFER_CORE_BASE_STRINGS_H_
#define KVXFER_CORE_BASE_STRINGS_H_

#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvxfer {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

// "context: what" with the code and the payloads of `status`; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(), absl::StrCat(ToAbsl(context), ": ", status.message()));
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { annotated.SetPayload(url, value); });
  return annotated;
}

// InvalidArgument, unless the name that a `what` is given has 1 to kMaxNameBytes of UTF-8 without
// control characters. Names end up in logs and in Python, whoever sends them.
absl::Status CheckName(std::string_view what, std::string_view name);

// "what: Connection refused (errno 111)". Where descriptors ran out it names the limit and the
// remedy.
std::string ErrnoText(std::string_view what, int error_number);

// Whether the call failed for want of descriptors or memory, of this process or this host.
bool OutOfResources(int error_number);

// ErrnoText with the code that fits: ResourceExhausted, PermissionDenied, else `other`.
absl::Status ErrnoStatus(int error_number, std::string_view what,
                         absl::StatusCode other = absl::StatusCode::kUnavailable);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_STRINGS_H_
