// The bytes of protocol version 1, in hex, a space between fields. They never change: a new format
// is a new version, and this file then stays beside the new one.
#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V1_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V1_H_

namespace kvxfer::golden {

inline constexpr char kHello[] =
    "0100 0200 101112131415161718191a1b1c1d1e1f 404142434445464748494a4b4c4d4e4f "
    "8877665544332211 0900000000000000 02000000 00 07 09000000 70726566696c6c2d30";
inline constexpr char kRefuse[] = "03 0100 0300 404142434445464748494a4b4c4d4e4f 04000000 676f6e65";
inline constexpr char kOpen[] =
    "0807060504030201 0500000000000000 01 02000000 abcdef01 01000000 00001002 2c010000 "
    "09000000 726571756573742037";
inline constexpr char kAmend[] = "0600000000000000 01000000 00040fff 02000000";
inline constexpr char kAbort[] = "0700000000000000 0800000000000000 01 02000000 00005006 00007008";
inline constexpr char kDiscard[] = "0900000000000000 01000000 fffff000";
inline constexpr char kSlotRequest[] = "80000000";
inline constexpr char kSlotGrant[] = "c0000000 40000000 ff0f0000";
inline constexpr char kReleased[] =
    "02000000 0100000000000000 ffffffffffffffff 01000000 00002003 "
    "01000000 0400000000000000 01 01000000 0500000000000000 00006007 01";
inline constexpr char kCredit[] = "0010000000000000 0000000100000000";
inline constexpr char kQuiesce[] = "0a00000000000000 01 01 03000000 01000000 02000000 03000000";
inline constexpr char kQuiet[] = "0b00000000000000";
inline constexpr char kPing[] = "1032547698badcfe";

// Type 14, sequence 3, ack 0x102, the body kPing.
inline constexpr char kPingMessage[] =
    "0e 00 0000 08000000 0300000000000000 0201000000000000 1032547698badcfe";

}  // namespace kvxfer::golden

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_GOLDEN_FRAMES_V1_H_
