// Regions of tables, as tests of planning write them.
#ifndef KVXFER_TESTS_UNIT_CORE_PLAN_REGION_VIEWS_H_
#define KVXFER_TESTS_UNIT_CORE_PLAN_REGION_VIEWS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {

inline constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
inline constexpr uint64_t kTop = UINT64_MAX;

inline RegionView View(uint32_t id, uint64_t base, uint64_t bytes,
                       Access access = Access::kReadWrite) {
  return {.id = RegionId{id}, .base = base, .bytes = bytes, .access = access};
}

}  // namespace kvxfer

#endif  // KVXFER_TESTS_UNIT_CORE_PLAN_REGION_VIEWS_H_
