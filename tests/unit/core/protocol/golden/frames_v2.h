// What protocol version 2 adds to version 1, as frames_v1.h has that. It never changes either.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V2_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V2_H_

namespace kvxfer::golden {

// Type 17, ack 8: session 9; type 9 with sequence 5 and ack 6; kPingMessage.
inline constexpr char kPiggybackMessage[] =
    "11 00 0000 48000000 0000000000000000 0800000000000000 0900000000000000 "
    "09 00 0000 08000000 0500000000000000 0600000000000000 0700000000000000 "
    "0e 00 0000 08000000 0300000000000000 0201000000000000 1032547698badcfe";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V2_H_
