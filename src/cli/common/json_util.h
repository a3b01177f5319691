// JSON from other processes, which are not trusted: a field that is missing or has another type
// gives InvalidArgument with its name. Nothing here throws.
#ifndef KVXFER_CLI_COMMON_JSON_UTIL_H_
#define KVXFER_CLI_COMMON_JSON_UTIL_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "kvxfer/peer.h"

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

// As lists [base, block_bytes, stride, count].
Json ToJson(const std::vector<PagedRegion>& regions);
absl::StatusOr<std::vector<PagedRegion>> GetRegions(const Json& object, const char* field);

Json ToJson(const Explanation& explanation);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_JSON_UTIL_H_
