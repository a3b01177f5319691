// What protocol version 3 adds to version 2, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V3_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V3_H_

namespace kvxfer::golden {

// The body of fence-rail (type 18) and of rail-fenced (type 19).
inline constexpr char kRail[] = "05000000";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V3_H_
