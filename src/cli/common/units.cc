#include "src/cli/common/units.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <limits>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr size_t kMaxSizes = 64;

absl::Status Bad(std::string_view what, std::string_view text, std::string_view fix) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(what), " '", ToAbsl(text), "': ", ToAbsl(fix)));
}

// Takes the leading digits off `text`; false if there are none, or they overflow.
bool TakeNumber(std::string_view& text, uint64_t& number) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return false;
  text = std::string_view(rest, static_cast<size_t>(end - rest));
  return true;
}

char Upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (Upper(a[i]) != Upper(b[i])) return false;
  }
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

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  std::string_view rest = text;
  uint64_t number = 0;
  if (!TakeNumber(rest, number)) {
    return Bad("size", text, "write a number and a unit, such as 4096, 4K, 64KiB, 1M or 2G");
  }
  if (rest.empty() || EqualsIgnoringCase(rest, "B")) return number;
  const size_t power = std::string_view("KMGT").find(Upper(rest[0]));
  const std::string_view tail = rest.substr(1);
  if (power == std::string_view::npos || !(tail.empty() || EqualsIgnoringCase(tail, "iB"))) {
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
  constexpr std::array<std::pair<std::string_view, uint64_t>, 5> kUnits = {
      {{"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}, {"m", 60'000'000'000}}};
  constexpr uint64_t kLongest = 10ull * 24 * 3600 * 1'000'000'000;
  std::string_view rest = text;
  uint64_t number = 0;
  if (TakeNumber(rest, number)) {
    if (number == 0 && rest.empty()) return Duration{};
    for (const auto& [unit, nanoseconds] : kUnits) {
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
  constexpr std::array<std::pair<int64_t, const char*>, 4> kUnits = {
      {{1'000'000'000, "s"}, {1'000'000, "ms"}, {1'000, "us"}, {1, "ns"}}};
  const int64_t ns = duration.count();
  for (const auto& [nanoseconds, unit] : kUnits) {
    if (ns % nanoseconds == 0) return absl::StrCat(ns / nanoseconds, space, unit);
  }
  return "";
}

std::string FormatTime(double seconds) {
  const double us = seconds * 1e6;
  double value = us;
  const char* unit = " us";
  if (us >= 999.5e3) {
    value = seconds;
    unit = " s";
  } else if (us >= 999.5) {
    value = us / 1e3;
    unit = " ms";
  }
  return FormatFixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0) + unit;
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

}  // namespace kvxfer::cli
