// JSON from other processes, read without trust: a missing field or one of another type is an
// InvalidArgument that names it; nothing here throws.
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

// Refuses what is no object or nests deeper than 8.
absl::StatusOr<Json> ParseJsonObject(std::string_view text);
// Text that is no UTF-8 is replaced, not refused.
std::string DumpJson(const Json& json, int indent = -1);
// The same, for files that people look into: lists of numbers and objects of plain values take one
// line each.
std::string DumpJsonLines(const Json& json);

absl::StatusOr<uint64_t> GetUint(const Json& object, const char* field);
// Zero when missing or no number.
double GetNumber(const Json& object, const char* field);
// Empty when missing or no string.
std::string GetString(const Json& object, const char* field);

// Binary fields (metadata) travel as hexadecimal digits.
std::string ToHex(std::string_view bytes);
absl::StatusOr<std::string> GetHex(const Json& object, const char* field);

// As lists [base, block_bytes, stride, count].
Json ToJson(const std::vector<PagedRegion>& regions);
absl::StatusOr<std::vector<PagedRegion>> GetRegions(const Json& object, const char* field);

Json ToJson(const Explanation& explanation);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_JSON_UTIL_H_
