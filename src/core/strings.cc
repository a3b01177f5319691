#include "src/core/strings.h"

namespace kvxfer {

std::string ErrnoText(std::string_view what, int error_number) {
  char buffer[128];
  // The GNU form: returns the text, in `buffer` or static, and never fails.
  const char* text = strerror_r(error_number, buffer, sizeof(buffer));
  return absl::StrCat(ToAbsl(what), ": ", text, " (errno ", error_number, ")");
}

}  // namespace kvxfer
