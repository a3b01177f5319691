#include "src/cli/common/json_util.h"

#include <algorithm>
#include <charconv>

#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

constexpr int kMaxDepth = 8;

// Whether the value takes more than one line: numbers, lists of numbers, and objects of plain
// values take one.
bool TakesLines(const Json& json) {
  return std::any_of(json.begin(), json.end(), [&json](const Json& item) {
    return json.is_object() ? item.is_structured() : item.is_object();
  });
}

void AppendLines(const Json& json, size_t indent, std::string& text) {
  if (!json.is_structured() || !TakesLines(json)) {
    text += DumpJson(json);
    return;
  }
  std::string_view separator = "\n";
  text += json.is_object() ? "{" : "[";
  for (const auto& [key, value] : json.items()) {
    text.append(separator).append(indent + 2, ' ');
    if (json.is_object()) text.append(DumpJson(key)).append(": ");
    AppendLines(value, indent + 2, text);
    separator = ",\n";
  }
  text.append("\n").append(indent, ' ').append(json.is_object() ? "}" : "]");
}

absl::Status Missing(const char* field, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("message field '", field, "' is missing or not ", ToAbsl(what)));
}

bool IsRegion(const Json& item) {
  if (!item.is_array() || item.size() != 4) return false;
  for (const Json& number : item) {
    if (!number.is_number_unsigned()) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  bool too_deep = false;
  const auto limit = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  Json json = Json::parse(text, limit, /*allow_exceptions=*/false);
  if (too_deep || !json.is_object()) return absl::InvalidArgumentError("not a JSON object");
  return json;
}

std::string DumpJson(const Json& json, int indent) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string DumpJsonLines(const Json& json) {
  std::string text;
  AppendLines(json, 0, text);
  return text;
}

absl::StatusOr<uint64_t> GetUint(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_unsigned()) return Missing(field, "a whole number");
  return it->get<uint64_t>();
}

double GetNumber(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

std::string GetString(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it == object.end() || !it->is_string() ? std::string() : it->get<std::string>();
}

std::string ToHex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (char c : bytes) {
    hex += kDigits[static_cast<uint8_t>(c) >> 4];
    hex += kDigits[static_cast<uint8_t>(c) & 15];
  }
  return hex;
}

absl::StatusOr<std::string> GetHex(const Json& object, const char* field) {
  const std::string hex = GetString(object, field);
  if (hex.empty() || hex.size() % 2 != 0) return Missing(field, "hexadecimal digits");
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    uint8_t value = 0;
    const char* end = hex.data() + i + 2;
    const auto [rest, error] = std::from_chars(hex.data() + i, end, value, 16);
    if (error != std::errc() || rest != end) return Missing(field, "hexadecimal digits");
    bytes += static_cast<char>(value);
  }
  return bytes;
}

Json ToJson(const std::vector<PagedRegion>& regions) {
  Json list = Json::array();
  for (const PagedRegion& r : regions) list.push_back({r.base, r.block_bytes, r.stride, r.count});
  return list;
}

absl::StatusOr<std::vector<PagedRegion>> GetRegions(const Json& object, const char* field) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_array()) return Missing(field, "a list of regions");
  std::vector<PagedRegion> regions;
  for (const Json& item : *it) {
    if (!IsRegion(item)) return Missing(field, "a list of [base, block bytes, stride, count]");
    regions.push_back({.base = item[0].get<uint64_t>(),
                       .block_bytes = item[1].get<uint64_t>(),
                       .stride = item[2].get<uint64_t>(),
                       .count = item[3].get<uint64_t>()});
  }
  return regions;
}

Json ToJson(const Explanation& explanation) {
  Json paths = Json::array();
  for (const PathExplanation& path : explanation.paths) {
    Json rails = Json::array();
    for (const RailExplanation& rail : path.each_rail) {
      rails.push_back({{"name", rail.name},
                       {"up", rail.up},
                       {"bytes_per_second", rail.bytes_per_second},
                       {"round_trip_ns", rail.round_trip.count()},
                       {"down_for_ns", rail.down_for.count()},
                       {"why", rail.why}});
    }
    paths.push_back({{"backend", path.backend},
                     {"usable", path.usable},
                     {"chosen", path.chosen},
                     {"connected", path.connected},
                     {"rails", path.rails},
                     {"bytes_per_second", path.bytes_per_second},
                     {"latency_ns", path.latency.count()},
                     {"each_rail", std::move(rails)},
                     {"why", path.why}});
  }
  const auto kind = [](MemoryKind of) { return of == MemoryKind::kCuda ? "cuda" : "host"; };
  Json memory = Json::array();
  for (const MemoryExplanation& one : explanation.memory) {
    memory.push_back({{"local", kind(one.local)},
                      {"remote", kind(one.remote)},
                      {"backend", one.backend},
                      {"staged", one.staged},
                      {"why", one.why}});
  }
  return {{"peer", explanation.peer},
          {"incarnation", explanation.incarnation.ToString()},
          {"host", explanation.host},
          {"paths", std::move(paths)},
          {"memory", std::move(memory)}};
}

}  // namespace kvxfer::cli
