#include "tests/integration/bench_schema.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace kvxfer::cli {
namespace {

using Json = nlohmann::json;

bool HasType(const std::string& type, const Json& value) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "integer") return value.is_number_integer();
  return type == "number" && value.is_number();
}

class Checker {
 public:
  void Check(const Json& schema, const Json& value, const std::string& place) {
    for (const auto& [keyword, argument] : schema.items()) {
      if (keyword == "type") {
        Require(HasType(argument, value), place + ": is no " + argument.get<std::string>());
      } else if (keyword == "enum") {
        Require(std::find(argument.begin(), argument.end(), value) != argument.end(),
                place + ": " + value.dump() + " is none of " + argument.dump());
      } else if (keyword == "const") {
        Require(value == argument, place + ": is not " + argument.dump());
      } else if (keyword == "minimum") {
        Require(value.is_number() && value >= argument, place + ": below " + argument.dump());
      } else if (keyword == "minItems") {
        Require(value.size() >= argument.get<size_t>(), place + ": too few items");
      } else if (keyword == "maxItems") {
        Require(value.size() <= argument.get<size_t>(), place + ": too many items");
      } else if (keyword == "items") {
        for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
          Check(argument, value[i], place + "[" + std::to_string(i) + "]");
        }
      } else if (keyword == "required") {
        for (const Json& name : argument) {
          Require(value.contains(name.get<std::string>()), place + ": no " + name.dump());
        }
      } else if (keyword == "properties") {
        CheckProperties(schema, value, place);
      } else {
        Require(keyword == "$schema" || keyword == "title" || keyword == "description" ||
                    (keyword == "additionalProperties" && argument == false),
                "the schema's '" + keyword + "' is not understood");
      }
    }
  }
  std::vector<std::string> errors;

 private:
  void Require(bool holds, const std::string& error) {
    if (!holds) errors.push_back(error);
  }
  void CheckProperties(const Json& schema, const Json& value, const std::string& place) {
    for (const auto& [name, item] : value.items()) {
      const auto property = schema["properties"].find(name);
      if (property == schema["properties"].end()) {
        Require(!schema.contains("additionalProperties"), absl::StrCat(place, ": unknown ", name));
      } else {
        Check(*property, item, absl::StrCat(place, ".", name));
      }
    }
  }
};

}  // namespace

std::vector<std::string> SchemaErrors(const Json& schema, const Json& value,
                                      const std::string& place) {
  Checker checker;
  checker.Check(schema, value, place);
  return checker.errors;
}

Json BenchSchema() {
  std::ifstream file(KVXFER_SOURCE_DIR "/docs/bench.schema.json");
  return Json::parse(file, nullptr, /*allow_exceptions=*/false);
}

}  // namespace kvxfer::cli
