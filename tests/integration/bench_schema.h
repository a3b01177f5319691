// Checks a JSON value against a JSON schema, as far as docs/bench.schema.json uses one: type, enum,
// const, minimum, required, properties, additionalProperties, items, minItems, maxItems. A keyword
// that it does not know fails.
#ifndef KVXFER_TESTS_INTEGRATION_BENCH_SCHEMA_H_
#define KVXFER_TESTS_INTEGRATION_BENCH_SCHEMA_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvxfer::cli {

// What is wrong, each with its place; empty when nothing is.
std::vector<std::string> SchemaErrors(const nlohmann::json& schema, const nlohmann::json& value,
                                      const std::string& place = "");

// The schema that ships.
nlohmann::json BenchSchema();

}  // namespace kvxfer::cli

#endif  // KVXFER_TESTS_INTEGRATION_BENCH_SCHEMA_H_
