// What protocol version 6 adds to version 5, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_GOLDEN_FRAMES_V6_H_
#define KVXFER_TESTS_UNIT_GOLDEN_FRAMES_V6_H_

namespace kvxfer::golden {

// The body of regions (type 29).
inline constexpr char kRegions[] =
    "404142434445464748494a4b4c4d4e4f 01000000 09000000 "
    "02000000 02000000 04000000 09000000 09000000";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_GOLDEN_FRAMES_V6_H_
