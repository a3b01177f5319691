// Captures and searches the text that UCX prints.

#include "src/backends/ucx/print.h"

#include <cctype>
#include <cstdlib>

#include "absl/strings/ascii.h"

namespace kvxfer::ucx {
namespace {

bool IsName(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

}  // namespace

std::string Printed(absl::FunctionRef<void(FILE*)> print) {
  char* text = nullptr;
  size_t bytes = 0;
  FILE* const out = open_memstream(&text, &bytes);
  if (out == nullptr) return {};
  print(out);
  std::fclose(out);
  const std::string printed(text, bytes);
  std::free(text);
  return printed;
}

std::string ValueOf(std::string_view text, std::string_view name) {
  // The line break before both texts makes the search match whole names only.
  const std::string wanted = "\n" + std::string(name) + "=";
  const std::string all = "\n" + std::string(text);
  const size_t at = all.find(wanted);
  if (at == std::string::npos) return {};
  const size_t begin = at + wanted.size();
  return all.substr(begin, all.find('\n', begin) - begin);
}

// Words whose slash comes first or stands within a longer word, like "md[1]/posix/sysdev[255]", are
// no transports.
std::set<std::string> Transports(std::string_view text) {
  std::set<std::string> out;
  for (size_t at = text.find('/'); at != std::string_view::npos; at = text.find('/', at + 1)) {
    size_t begin = at;
    while (begin > 0 && IsName(text[begin - 1])) --begin;
    const bool preceded = begin > 0 && text[begin - 1] != ' ' && text[begin - 1] != ':';
    const bool followed = at + 1 < text.size() && IsName(text[at + 1]);
    if (begin < at && followed && !preceded) out.emplace(text.substr(begin, at - begin));
  }
  return out;
}

}  // namespace kvxfer::ucx
