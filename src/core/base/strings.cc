#include "src/core/base/strings.h"

#include <sys/resource.h>

#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kvxfer/types.h"
#include "src/core/base/text.h"

namespace kvxfer {
namespace {

std::string DescriptorRemedy(int error_number) {
  if (error_number == ENFILE) return "; the host has no open file left: raise sysctl fs.file-max";
  if (error_number != EMFILE) return "";
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return "";
  return absl::StrCat("; this process may have ", limit.rlim_cur,
                      " open files: raise the limit (ulimit -n, LimitNOFILE= of systemd)");
}

}  // namespace

absl::Status WithName(const absl::Status& status, std::string_view name) {
  absl::string_view rest = status.message();
  const bool named = absl::ConsumePrefix(&rest, ToAbsl(name)) &&
                     (absl::StartsWith(rest, ":") || absl::StartsWith(rest, " "));
  return named ? status : Annotate(status, name);
}

std::optional<std::vector<std::string>> SplitNames(std::string_view text, char separator) {
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(ToAbsl(text), separator)) {
    part = absl::StripAsciiWhitespace(part);
    if (part.empty()) return std::nullopt;
    names.emplace_back(part.data(), part.size());
  }
  return names;
}

absl::Status CheckName(std::string_view what, std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the name of the ", ToAbsl(what), " has ",
                                                   name.size(), " bytes, must have 1 to ",
                                                   kMaxNameBytes));
  }
  if (IsPrintable(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the name of the ", ToAbsl(what), ", \"",
                                                 Printable(name, kMaxNameBytes),
                                                 "\", must be UTF-8 without control characters"));
}

std::string ErrnoText(std::string_view what, int error_number) {
  char buffer[128];
  // The GNU strerror_r: returns the text, in `buffer` or static, and never fails.
  const char* text = strerror_r(error_number, buffer, sizeof(buffer));
  return absl::StrCat(ToAbsl(what), ": ", text, " (errno ", error_number, ")",
                      DescriptorRemedy(error_number));
}

bool OutOfResources(int error_number) {
  switch (error_number) {
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case ENOBUFS:
    case ETOOMANYREFS:
      return true;
    default:
      return false;
  }
}

absl::Status ErrnoStatus(int error_number, std::string_view what, absl::StatusCode other) {
  absl::StatusCode code = other;
  if (OutOfResources(error_number)) code = absl::StatusCode::kResourceExhausted;
  if (error_number == EPERM || error_number == EACCES) code = absl::StatusCode::kPermissionDenied;
  return absl::Status(code, ErrnoText(what, error_number));
}

}  // namespace kvxfer
