#include "src/cli/common/units.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "src/cli/common/options.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr size_t kMaxSizes = 64;
constexpr std::array<std::pair<const char*, uint64_t>, 5> kTimeUnits = {
    {{"m", 60'000'000'000}, {"s", 1'000'000'000}, {"ms", 1'000'000}, {"us", 1'000}, {"ns", 1}}};

absl::Status Bad(std::string_view what, std::string_view text, std::string_view fix) {
  return Invalid(ToAbsl(what), " '", ToAbsl(text), "': ", ToAbsl(fix));
}

// Takes the leading digits off `text`; false if there are none, or they overflow.
bool TakeNumber(std::string_view& text, uint64_t& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return false;
  text = std::string_view(rest, static_cast<size_t>(end - rest));
  return true;
}

absl::Status AppendRange(std::string_view text, std::vector<uint64_t>& sizes) {
  const size_t colon = text.find(':');
  absl::StatusOr<uint64_t> first = ParseSize(text.substr(0, colon));
  if (!first.ok()) return first.status();
  absl::StatusOr<uint64_t> last = first;
  if (colon != std::string_view::npos) last = ParseSize(text.substr(colon + 1));
  if (!last.ok()) return last.status();
  if (*first == 0) return Bad("size range", text, "sizes must be above zero");
  if (*first > *last) return Bad("size range", text, "the first size must not exceed the last");
  for (uint64_t size = *first;; size *= 2) {
    if (sizes.size() == kMaxSizes) return Bad("size range", text, "more than 64 sizes");
    sizes.push_back(size);
    if (size > *last / 2) return absl::OkStatus();
  }
}

constexpr std::array kHostNames = {
    std::pair{std::string_view("mapped"), MemorySource::kMapped},
    std::pair{std::string_view("host"), MemorySource::kMapped},
    std::pair{std::string_view("mapped-small"), MemorySource::kMappedSmall},
    std::pair{std::string_view("mapped-reserved"), MemorySource::kMappedReserved},
    std::pair{std::string_view("attached"), MemorySource::kAttached}};
constexpr std::string_view kCudaName = "cuda";

// The N of "cuda:N", or 0 for "cuda"; empty if the text is neither.
std::optional<int> CudaDevice(std::string_view text) {
  constexpr int kMost = 1023;
  if (text == kCudaName) return 0;
  if (!text.starts_with(kCudaName) || text.substr(kCudaName.size(), 1) != ":") return std::nullopt;
  const std::string_view digits = text.substr(kCudaName.size() + 1);
  int device = 0;
  const char* const end = digits.data() + digits.size();
  const auto [rest, error] = std::from_chars(digits.data(), end, device);
  if (error != std::errc() || rest != end || device < 0 || device > kMost) return std::nullopt;
  return device;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  std::string_view rest = text;
  uint64_t number = 0;
  if (!TakeNumber(rest, number)) {
    return Bad("size", text, "write a number and a unit, such as 4096, 4K, 64KiB, 1M or 2G");
  }
  if (rest.empty() || absl::EqualsIgnoreCase(ToAbsl(rest), "B")) return number;
  const size_t power =
      std::string_view("KMGT").find(absl::ascii_toupper(static_cast<unsigned char>(rest[0])));
  const std::string_view tail = rest.substr(1);
  if (power == std::string_view::npos ||
      !(tail.empty() || absl::EqualsIgnoreCase(ToAbsl(tail), "iB"))) {
    return Bad("size", text, "the unit must be B, K, M, G or T (KiB, MiB, GiB, TiB)");
  }
  const unsigned shift = 10 * (static_cast<unsigned>(power) + 1);
  if (number > std::numeric_limits<uint64_t>::max() >> shift) {
    return Bad("size", text, "does not fit 64 bits");
  }
  return number << shift;
}

absl::StatusOr<std::vector<uint64_t>> ParseSizes(std::string_view text) {
  std::vector<uint64_t> sizes;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    if (absl::Status status = AppendRange(rest.substr(0, comma), sizes); !status.ok()) {
      return status;
    }
    if (comma == std::string_view::npos) return sizes;
    rest.remove_prefix(comma + 1);
  }
}

absl::StatusOr<Duration> ParseDuration(std::string_view text) {
  constexpr uint64_t kLongest = 10ull * 24 * 3600 * 1'000'000'000;
  std::string_view rest = text;
  uint64_t number = 0;
  if (TakeNumber(rest, number)) {
    if (number == 0 && rest.empty()) return Duration{};
    for (const auto& [unit, nanoseconds] : kTimeUnits) {
      if (rest != unit) continue;
      if (number > kLongest / nanoseconds) return Bad("time", text, "longer than ten days");
      return Duration(static_cast<int64_t>(number * nanoseconds));
    }
  }
  return Bad("time", text, "write a whole number and a unit, such as 250us, 10ms, 1s or 2m");
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames = {" B", " KiB", " MiB", " GiB", " TiB"};
  size_t unit = 0;
  double value = static_cast<double>(bytes);
  for (; value >= 1024 && unit + 1 < kNames.size(); ++unit) value /= 1024;
  std::string text = FormatFixed(value, value == static_cast<double>(uint64_t(value)) ? 0 : 1);
  return text.append(kNames[unit]);
}

std::string FormatSize(uint64_t bytes) {
  constexpr std::string_view kUnits = "KMGT";
  std::string unit;
  for (size_t i = 0; i < kUnits.size() && bytes != 0 && bytes % 1024 == 0; ++i) {
    bytes /= 1024;
    unit = kUnits[i];
  }
  return std::to_string(bytes) + unit;
}

std::string FormatDuration(Duration duration, const char* space) {
  const auto ns = static_cast<uint64_t>(duration.count());
  const auto fits = [ns](const auto& unit) {
    return unit.first != std::string_view("m") && ns % unit.second == 0;
  };
  const auto& [unit, nanoseconds] = *std::ranges::find_if(kTimeUnits, fits);
  return absl::StrCat(ns / nanoseconds, space, unit);
}

std::string FormatTime(double seconds) {
  const double us = seconds * 1e6;
  const TimeUnit unit = us >= 999.5e3 ? TimeUnit{1, " s"}
                        : us >= 999.5 ? TimeUnit{1e3, " ms"}
                                      : TimeUnit{1e6, " us"};
  const double value = seconds * unit.per_second;
  return FormatFixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + unit.name;
}

TimeUnit UnitFor(double seconds) {
  if (seconds < 10e-3) return {1e6, "us"};
  return seconds < 10 ? TimeUnit{1e3, "ms"} : TimeUnit{1, "s"};
}

std::string FormatFixed(double value, int decimals) {
  std::array<char, 64> buffer;
  const int length = std::snprintf(buffer.data(), buffer.size(), "%.*f", decimals, value);
  return std::string(buffer.data(), std::min(static_cast<size_t>(length), buffer.size() - 1));
}

std::string HostPort::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port);
}

absl::StatusOr<HostPort> ParseHostPort(std::string_view text, uint16_t default_port) {
  const auto bad = [text](std::string_view why) {
    return Invalid("address '", ToAbsl(text), "': ", ToAbsl(why),
                   "; write host:port, host or [v6 address]:port");
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

absl::StatusOr<MemoryChoice> ParseMemoryChoice(std::string_view text) {
  for (const auto& [name, source] : kHostNames) {
    if (name == text) return MemoryChoice(source);
  }
  if (const std::optional<int> device = CudaDevice(text)) {
    return MemoryChoice(MemorySource::kCuda, *device);
  }
  return Invalid("memory '", ToAbsl(text), "': choose ", JoinOr(MemoryWords()),
                 DidYouMean(text, MemoryWords()));
}

absl::Status FromJson(const Json& json, MemoryChoice& choice) {
  const auto parsed = ParseMemoryChoice(json.is_string() ? json.get<std::string>() : "");
  if (parsed.ok()) choice = *parsed;
  return parsed.status();
}

std::vector<std::string> MemoryWords() {
  std::vector<std::string> words;
  words.reserve(kHostNames.size() + 2);
  for (const auto& [name, source] : kHostNames) words.emplace_back(name);
  words.emplace_back(kCudaName);
  words.push_back(std::string(kCudaName) + ":N");
  return words;
}

std::string MemoryChoice::ToString() const {
  if (cuda()) return absl::StrCat(ToAbsl(kCudaName), ":", device);
  for (const auto& [name, of_host] : kHostNames) {
    if (of_host == source) return std::string(name);
  }
  return "";
}

std::string MemorySides::Words() const {
  if (here == there) return here.ToString() + " memory";
  return absl::StrCat(here.ToString(), " memory at the initiator, ", there.ToString(),
                      " memory at the target");
}

absl::StatusOr<MemorySides> ParseMemorySides(std::string_view text) {
  const size_t comma = text.find(',');
  const absl::StatusOr<MemoryChoice> here = ParseMemoryChoice(text.substr(0, comma));
  if (!here.ok()) return here.status();
  if (comma == std::string_view::npos) return MemorySides{*here, *here};
  const absl::StatusOr<MemoryChoice> there = ParseMemoryChoice(text.substr(comma + 1));
  if (!there.ok()) return there.status();
  return MemorySides{*here, *there};
}

}  // namespace kvxfer::cli
