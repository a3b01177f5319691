// Checks a JSON value against a JSON schema. Knows the keywords that docs/bench.schema.json uses:
// type, enum, const, minimum, required, properties, additionalProperties, items, minItems,
// maxItems. Any other keyword is an error.
#ifndef KVXFER_TESTS_INTEGRATION_BENCH_SCHEMA_H_
#define KVXFER_TESTS_INTEGRATION_BENCH_SCHEMA_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvxfer::cli {

// The errors, each with its place.
std::vector<std::string> SchemaErrors(const nlohmann::json& schema, const nlohmann::json& value,
                                      const std::string& place = "");

// docs/bench.schema.json.
nlohmann::json BenchSchema();

}  // namespace kvxfer::cli

#endif  // KVXFER_TESTS_INTEGRATION_BENCH_SCHEMA_H_
