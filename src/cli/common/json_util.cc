#include "src/cli/common/json_util.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
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

absl::Status Missing(std::string_view what) { return Invalid("is missing or not ", ToAbsl(what)); }

// A value that may be missing.
template <typename Value>
absl::Status Optional(const Json& json, bool has_type, const char* what, Value& value) {
  if (json.is_null()) return absl::OkStatus();
  if (!has_type) return Missing(what);
  value = json.get<Value>();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Json> ParseJsonObject(std::string_view text) {
  bool too_deep = false;
  const auto limit = [&](int depth, Json::parse_event_t, Json&) {
    too_deep |= depth > kMaxDepth;
    return !too_deep;
  };
  Json json = Json::parse(text, limit, /*allow_exceptions=*/false);
  if (too_deep || !json.is_object()) return Invalid("not a JSON object");
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
  return GetField<uint64_t>(object, field);
}

double GetNumber(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

std::string GetString(const Json& object, const char* field) {
  const auto it = object.find(field);
  return it == object.end() || !it->is_string() ? std::string() : it->get<std::string>();
}

std::string ToHex(std::string_view bytes) { return absl::BytesToHexString(ToAbsl(bytes)); }

absl::StatusOr<std::string> GetHex(const Json& object, const char* field) {
  const std::string hex = GetString(object, field);
  if (!hex.empty() && hex.size() % 2 == 0 && std::ranges::all_of(hex, absl::ascii_isxdigit)) {
    return absl::HexStringToBytes(hex);
  }
  return Invalid("message field '", field, "' is missing or not hexadecimal digits");
}

JsonIn::JsonIn(const Json& json) : json_(json) {
  if (!json.is_structured()) status_ = Missing("an object or a list");
}

const Json& JsonIn::Next(const char* field) {
  static const auto* const kMissing = new Json();
  if (json_.is_array()) return next_ < json_.size() ? json_[next_++] : *kMissing;
  const auto it = json_.find(field);
  return it == json_.end() ? *kMissing : *it;
}

void JsonIn::Keep(const char* field, const absl::Status& status) {
  if (status.ok()) return;
  status_.Update(Invalid("message field '", field, "' ", status.message()));
}

absl::Status JsonIn::Finish() {
  if (json_.is_array() && next_ != json_.size()) status_.Update(Missing("a list of this length"));
  return status_;
}

absl::Status FromJson(const Json& json, Duration& value) {
  int64_t ns = 0;
  if (absl::Status s = FromJson(json, ns); !s.ok()) return s;
  value = Duration(ns);
  return ns < 0 ? Missing("a time") : absl::OkStatus();
}

absl::Status FromJson(const Json& json, double& value) {
  return Optional(json, json.is_number(), "a number", value);
}

absl::Status FromJson(const Json& json, bool& value) {
  return Optional(json, json.is_boolean(), "true or false", value);
}

absl::Status FromJson(const Json& json, std::string& value) {
  return Optional(json, json.is_string(), "a text", value);
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
