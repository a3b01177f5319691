// What protocol version 4 adds to version 3, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V4_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V4_H_

namespace kvxfer::golden {

// The body of an open whose notification is a kv-part, but for that.
inline constexpr char kOpenKvPart[] = "0700000000000000 0000000000000000 02 00000000 00000000";

// A kv-part, as the notification of such an open.
inline constexpr char kKvPart[] =
    "02000000 6b76 1817161514131211 03000000 723a37 0807060504030201 02000000 04000000 "
    "10000000 08000000 01 02000000 6869";

// The body of fetch-end (type 21).
inline constexpr char kFetchEnd[] = "0700000000000000 03000000 723a37 02000000";

// The body of kv-answer (type 22).
inline constexpr char kKvAnswer[] = "0700000000000000 00 07000000 65787069726564";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V4_H_
