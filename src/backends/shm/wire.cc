#include "src/backends/shm/wire.h"

#include <charconv>

#include "src/core/base/strings.h"
#include "src/transport/unix_socket.h"

namespace kvxfer::shm {
namespace {

// Takes the number at the front of `text`, up to `end` or the end of the text, and consumes both.
template <typename Number>
bool TakeNumber(std::string_view& text, char end, Number& out) {
  const char* const last = text.data() + text.size();
  auto [next, error] = std::from_chars(text.data(), last, out);
  if (error != std::errc()) return false;
  if (next == last) {
    text = {};
    return end == '\0';
  }
  if (*next != end) return false;
  text.remove_prefix(static_cast<size_t>(next - text.data()) + 1);
  return true;
}

bool TakePrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

std::string Encode(const Address& address) {
  return absl::StrCat("1:", address.pid, ":", address.start_time, ":", address.socket);
}

absl::StatusOr<Address> DecodeAddress(std::string_view text) {
  Address address;
  std::string_view rest = text;
  if (!TakePrefix(rest, "1:") || !TakeNumber(rest, ':', address.pid) ||
      !TakeNumber(rest, ':', address.start_time) || rest.empty() ||
      rest.size() > net::kMaxUnixName || address.pid == 0) {
    return absl::InvalidArgumentError(
        "shm: the peer's address is not one of this version; both sides need the same kvxfer");
  }
  address.socket = std::string(rest);
  return address;
}

std::string Encode(const RegionKey& key) {
  if (!key.mapped) return "attached";
  return absl::StrCat("mapped:", key.file, ":", key.offset);
}

absl::StatusOr<RegionKey> DecodeKey(std::string_view text) {
  RegionKey key;
  if (text == "attached") return key;
  key.mapped = true;
  std::string_view rest = text;
  if (!TakePrefix(rest, "mapped:") || !TakeNumber(rest, ':', key.file) ||
      !TakeNumber(rest, '\0', key.offset) || key.file == 0) {
    return absl::InvalidArgumentError("shm: the region's key is neither mapped nor attached");
  }
  return key;
}

absl::Status CheckReachable(const HostIdentity& here, const HostIdentity& there) {
  auto refuse = [&there](std::string_view why) {
    return absl::UnavailableError(absl::StrCat("shm cannot reach process ", there.pid, " on ",
                                               there.hostname, ": ", ToAbsl(why),
                                               "; tcp will be taken"));
  };
  if (here.boot_id.empty() || !here.SameHost(there)) {
    return refuse(absl::StrCat("it runs on another host (or this one before a restart) than ",
                               here.hostname));
  }
  const std::string why = net::WhyNotJoined(here, there, "shm");
  return why.empty() ? absl::OkStatus() : refuse(why);
}

}  // namespace kvxfer::shm
