#include "src/cli/common/host_port.h"

#include <charconv>

#include "src/core/base/strings.h"

namespace kvxfer::cli {

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text, uint16_t default_port) {
  const auto bad = [text](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("address '", ToAbsl(text), "': ", ToAbsl(why),
                                                   "; write host:port, host or [v6 address]:port"));
  };
  std::string_view host = text;
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return bad("no ] after [");
    host = text.substr(1, close - 1);
    port = text.substr(close + 1);
    has_port = !port.empty();
    if (has_port && port[0] != ':') return bad("only :port may follow ]");
    if (has_port) port.remove_prefix(1);
  } else if (const size_t colon = text.find(':');
             colon != std::string_view::npos && colon == text.rfind(':')) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  if (host.empty()) return bad("no host");
  HostPort result{.host = std::string(host), .port = default_port};
  if (has_port) {
    const char* end = port.data() + port.size();
    const auto [rest, error] = std::from_chars(port.data(), end, result.port);
    if (error != std::errc() || rest != end) return bad("the port is not a number up to 65535");
  }
  return result;
}

}  // namespace kvxfer::cli
