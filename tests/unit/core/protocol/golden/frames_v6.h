// What protocol version 6 adds to version 5, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V6_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V6_H_

namespace kvxfer::golden {

// The body of regions (type 29).
inline constexpr char kRegions[] =
    "404142434445464748494a4b4c4d4e4f 01000000 09000000 "
    "02000000 02000000 04000000 09000000 09000000";

// The body of lease-read (type 30).
inline constexpr char kLeaseRead[] =
    "0700000000000000 03000000 723a37 02000000 ab63 0807060504030201 00ca9a3b00000000 "
    "0065cd1d00000000";

// The body of lease-answer (type 31).
inline constexpr char kLeaseAnswer[] = "0700000000000000 04 07000000 65787069726564";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V6_H_
