#include "src/core/strings.h"

#include "kvxfer/types.h"

namespace kvxfer {

absl::Status CheckName(std::string_view what, std::string_view name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the name of a ", ToAbsl(what), " has ",
                                                 name.size(), " bytes, must have 1 to ",
                                                 kMaxNameBytes));
}

std::string ErrnoText(std::string_view what, int error_number) {
  char buffer[128];
  // The GNU form: returns the text, in `buffer` or static, and never fails.
  const char* text = strerror_r(error_number, buffer, sizeof(buffer));
  return absl::StrCat(ToAbsl(what), ": ", text, " (errno ", error_number, ")");
}

}  // namespace kvxfer
