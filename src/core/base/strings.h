// Conversions between std::string_view and Abseil's own string_view, which Debian's Abseil is built
// with (only this file converts), and the helpers that build error texts.
//
// Thread-safety: functions without state.
#ifndef KVXFER_CORE_BASE_STRINGS_H_
#define KVXFER_CORE_BASE_STRINGS_H_

#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kvxfer/types.h"

namespace kvxfer {

inline absl::string_view ToAbsl(std::string_view s) { return {s.data(), s.size()}; }
inline std::string_view ToStd(absl::string_view s) { return {s.data(), s.size()}; }

// Another message with the code and payloads of `status`, which must not be OK.
inline absl::Status WithMessage(const absl::Status& status, absl::string_view message) {
  absl::Status other(status.code(), message);
  status.ForEachPayload(
      [&](absl::string_view url, const absl::Cord& value) { other.SetPayload(url, value); });
  return other;
}

// "context: message" with the code and payloads of `status`. OK stays OK.
inline absl::Status Annotate(const absl::Status& status, std::string_view context) {
  if (status.ok()) return status;
  return WithMessage(status, absl::StrCat(ToAbsl(context), ": ", status.message()));
}

// The error of a wait whose time-out passed (kTimedOut).
inline absl::Status TimedOutError(absl::string_view message) { return {kTimedOut, message}; }

// Annotate, unless the message begins with `name` already ("tcp: ...", "tcp peer ...").
absl::Status WithName(const absl::Status& status, std::string_view name);

// The parts of `text` between separators, without the spaces around them; nothing if a part is
// empty.
std::optional<std::vector<std::string>> SplitNames(std::string_view text, char separator);

// InvalidArgument unless `name` has 1 to kMaxNameBytes bytes of UTF-8 without control characters.
// `what` is the kind of thing that it names, for the message. Local names and names from peers are
// both checked, because all of them reach logs and Python.
absl::Status CheckName(std::string_view what, std::string_view name);

// "what: Connection refused (errno 111)". If descriptors ran out, the text also names the limit and
// how to raise it.
std::string ErrnoText(std::string_view what, int error_number);

// Whether the call failed because this process or this host has no descriptors or memory left.
bool OutOfResources(int error_number);

// A Status with ErrnoText as its message: ResourceExhausted, PermissionDenied, or else `other`.
absl::Status ErrnoStatus(int error_number, std::string_view what,
                         absl::StatusCode other = absl::StatusCode::kUnavailable);

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_STRINGS_H_
