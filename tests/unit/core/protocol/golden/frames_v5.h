// What protocol version 5 adds to version 4, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V5_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V5_H_

namespace kvxfer::golden {

// The body of stage-ask (type 23).
inline constexpr char kStageAsk[] = "08000000";

// The body of stage-lend (type 24).
inline constexpr char kStageLend[] = "02000000 03000000 07000000";

// The body of stage-recall (type 25).
inline constexpr char kStageRecall[] = "00000000";

// The body of stage-back (type 26).
inline constexpr char kStageBack[] = "01000000 07000000";

// The body of stage (type 27).
inline constexpr char kStage[] =
    "0100000000000080 02 07000000 02000000 0010200000000000 00020000 78563412 "
    "0030200000000000 01000000 78563412";

// The body of staged (type 28).
inline constexpr char kStaged[] = "0100000000000080 00 03000000 627573";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V5_H_
