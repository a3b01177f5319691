// JSON from other processes, which are not trusted: a field that is missing or has another type
// gives InvalidArgument with its name. Nothing here throws.
//
// A struct that is sent as JSON names its fields once, in a function that serves both directions:
//
//   template <typename Io>
//   void Fields(Io& io, JsonRef<Io, LoopSpec> spec) {
//     io("requests", spec.requests);
//     io("duration_ns", spec.duration);
//   }
//
//   Json json = FieldsToJson(spec);                          // an object
//   absl::StatusOr<LoopSpec> spec = FromJson<LoopSpec>(json);
//
// In a vector such a struct is a list of its values. Numbers must be there; a double, flag or text
// that is not there is 0, false or empty.
#ifndef KVXFER_CLI_COMMON_JSON_UTIL_H_
#define KVXFER_CLI_COMMON_JSON_UTIL_H_

#include <concepts>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "kvxfer/peer.h"
#include "src/cli/common/errors.h"

namespace kvxfer::cli {

using Json = nlohmann::json;

// InvalidArgument: the text is not a JSON object, or nests deeper than 8 levels.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);
// Replaces text that is not UTF-8.
std::string DumpJson(const Json& json, int indent = -1);
// The same for files that people read: lists of numbers and objects of plain values take one line
// each.
std::string DumpJsonLines(const Json& json);

absl::StatusOr<uint64_t> GetUint(const Json& object, const char* field);
// Zero if the field is missing or is not a number.
double GetNumber(const Json& object, const char* field);
// Empty if the field is missing or is not a string.
std::string GetString(const Json& object, const char* field);

// Binary fields, such as metadata, are sent as hexadecimal digits.
std::string ToHex(std::string_view bytes);
absl::StatusOr<std::string> GetHex(const Json& object, const char* field);

Json ToJson(const Explanation& explanation);

template <typename Io, typename Struct>
using JsonRef = std::conditional_t<Io::kReads, Struct&, const Struct&>;

}  // namespace kvxfer::cli

namespace kvxfer {
template <typename Io>
void Fields(Io& io, cli::JsonRef<Io, PagedRegion> region) {
  io("base", region.base);
  io("block_bytes", region.block_bytes);
  io("stride", region.stride);
  io("count", region.count);
}
}  // namespace kvxfer

namespace kvxfer::cli {

class JsonOut;
template <typename Struct>
concept HasFields = requires(JsonOut& io, const Struct& value) {
  Fields(io, value);
};

class JsonOut {
 public:
  static constexpr bool kReads = false;
  explicit JsonOut(Json empty) : json_(std::move(empty)) {}
  template <typename Value>
  void operator()(const char* field, const Value& value) {
    (json_.is_array() ? json_.emplace_back() : json_[field]) = Of(value);
  }
  Json Take() { return std::move(json_); }

  template <typename Value>
  static Json Of(const Value& value) {
    if constexpr (requires { ToJson(value); }) {
      return ToJson(value);
    } else if constexpr (HasFields<Value>) {
      JsonOut row(Json::array());
      Fields(row, value);
      return row.Take();
    } else {
      return value;
    }
  }
  template <typename Value>
  static Json Of(const std::optional<Value>& value) {
    return value ? Of(*value) : Json();
  }
  static Json Of(Duration value) { return static_cast<uint64_t>(value.count()); }
  template <typename Value>
  static Json Of(const std::vector<Value>& list) {
    Json json = Json::array();
    for (const Value& value : list) json.push_back(Of(value));
    return json;
  }
  template <typename Value>
  static Json Of(const std::map<std::string, Value>& map) {
    Json json = Json::object();
    for (const auto& [name, value] : map) json[name] = Of(value);
    return json;
  }

 private:
  Json json_;
};

// Errors complete "message field 'x' ".
template <std::integral Integer>
absl::Status FromJson(const Json& json, Integer& value) {
  if (!json.is_number_integer() ||
      !(json.is_number_unsigned() ? std::in_range<Integer>(json.get<uint64_t>())
                                  : std::in_range<Integer>(json.get<int64_t>()))) {
    return absl::InvalidArgumentError("is missing or not a whole number that fits");
  }
  value = json.get<Integer>();
  return absl::OkStatus();
}
absl::Status FromJson(const Json& json, double& value);
absl::Status FromJson(const Json& json, bool& value);
absl::Status FromJson(const Json& json, std::string& value);
absl::Status FromJson(const Json& json, Duration& value);
template <typename Value>
absl::Status FromJson(const Json& json, std::optional<Value>& value);
template <typename Value>
absl::Status FromJson(const Json& json, std::vector<Value>& list);
template <typename Value>
absl::Status FromJson(const Json& json, std::map<std::string, Value>& map);
template <HasFields Struct>
absl::Status FromJson(const Json& json, Struct& value);

class JsonIn {
 public:
  static constexpr bool kReads = true;
  explicit JsonIn(const Json& json);
  template <typename Value>
  void operator()(const char* field, Value& value) {
    Keep(field, FromJson(Next(field), value));
  }
  absl::Status Finish();

 private:
  const Json& Next(const char* field);
  void Keep(const char* field, const absl::Status& status);

  const Json& json_;
  size_t next_ = 0;  // in a list
  absl::Status status_;
};

template <typename Value>
absl::Status FromJson(const Json& json, std::optional<Value>& value) {
  return json.is_null() ? absl::OkStatus() : FromJson(json, value.emplace());
}

template <typename Value>
absl::Status FromJson(const Json& json, std::vector<Value>& list) {
  if (!json.is_array()) return Invalid("is missing or not a list");
  for (const Json& item : json) {
    if (absl::Status s = FromJson(item, list.emplace_back()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

template <typename Value>
absl::Status FromJson(const Json& json, std::map<std::string, Value>& map) {
  for (const auto& [name, item] : json.items()) {
    if (absl::Status s = FromJson(item, map[name]); !s.ok()) return s;
  }
  return absl::OkStatus();
}

template <HasFields Struct>
absl::Status FromJson(const Json& json, Struct& value) {
  JsonIn io(json);
  Fields(io, value);
  return io.Finish();
}

template <typename Struct>
Json FieldsToJson(const Struct& value) {
  JsonOut io(Json::object());
  Fields(io, value);
  return io.Take();
}

template <typename Value>
absl::StatusOr<Value> FromJson(const Json& json) {
  Value value{};
  if (absl::Status s = FromJson(json, value); !s.ok()) return s;
  return value;
}

// A field of any of these types.
template <typename Value>
absl::StatusOr<Value> GetField(const Json& object, const char* field) {
  Value value{};
  JsonIn io(object);
  io(field, value);
  if (absl::Status s = io.Finish(); !s.ok()) return s;
  return value;
}

using PagedRegions = std::vector<PagedRegion>;
inline Json ToJson(const PagedRegions& regions) { return JsonOut::Of(regions); }
inline absl::StatusOr<PagedRegions> GetRegions(const Json& object, const char* field) {
  return GetField<PagedRegions>(object, field);
}

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_JSON_UTIL_H_
